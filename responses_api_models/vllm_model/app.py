"""vLLM as a model server: chat to the engine, both formats to callers, and the tokens of each call."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cached_property
from typing import Any, Literal

import aiohttp
from fastapi import FastAPI, HTTPException, Request
from pydantic import Field, field_validator, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import AnswerFormatError, RequestFormatError, VLLMConverter
from responses_api_models.vllm_model import answers
from responses_api_models.vllm_model.replicas import Replicas


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    base_url: str | list[str]
    """Of the engine, with `/v1`. A list: replicas of one model; a session stays with one of them."""
    api_key: str = Field(repr=False)
    model: str
    """The model asked for, whatever a request names."""
    return_token_id_information: bool = False
    """Put the ids and log-probabilities of each call on its last output item; needed for training."""
    uses_reasoning_parser: bool = False
    """Whether the engine has a --reasoning-parser; else reasoning stands in the text between think tags."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Given to the chat template; those of a request win."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Laid over every request."""
    sampling_overrides: dict[str, Any] = Field(default_factory=dict)
    """Laid over the sampling fields of every request, such as temperature, top_p and top_k."""
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Most turns at the engine at once, over all replicas; None: as many as there are rollouts."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"
    """What the engine's --logprobs-mode is (raw is its default); recorded beside the log-probabilities."""
    token_id_replay: Literal["messages", "completions"] = "messages"
    """How the ids of earlier turns come back. `messages`: on the messages, for servers that take them;
    `completions`: in a prompt of ids that is put together here, which a stock vLLM takes."""
    eos_token_id: int | None = None
    """For `completions`: the token that ends a turn."""
    eos_token: str | None = None
    """The same as text, such as <|im_end|>; the engine is asked for its id."""

    @field_validator("base_url")
    @classmethod
    def _at_least_one(cls, base_url: str | list[str]) -> str | list[str]:
        if not base_url:
            raise ValueError("name at least one address, such as http://127.0.0.1:8000/v1")
        return base_url

    @model_validator(mode="after")
    def _replay_has_what_it_needs(self) -> "VLLMModelConfig":
        if self.token_id_replay == "completions":
            if not self.return_token_id_information:
                raise ValueError("token_id_replay: completions needs return_token_id_information: true")
            if self.eos_token_id is None and not self.eos_token:
                raise ValueError("token_id_replay: completions needs eos_token_id or eos_token")
        return self


class VLLMModel(SimpleResponsesAPIModel):
    config: VLLMModelConfig

    def setup_webserver(self) -> FastAPI:
        self.replicas  # noqa: B018 - built now: an address that cannot be one is refused at start-up
        return super().setup_webserver()

    # What every request reads is a cached property: pydantic finds a private attribute thirty times slower.
    @cached_property
    def replicas(self) -> Replicas:
        config = self.config
        urls = [config.base_url] if isinstance(config.base_url, str) else config.base_url
        return Replicas(
            config.name, [NeMoGymAsyncOpenAI(url, config.api_key, config.default_headers) for url in urls]
        )

    @cached_property
    def slots(self) -> AbstractAsyncContextManager[None]:
        limit = self.config.max_concurrent_requests
        return asyncio.Semaphore(limit) if limit is not None else nullcontext()

    @cached_property
    def converter(self) -> VLLMConverter:
        return VLLMConverter(
            uses_reasoning_parser=self.config.uses_reasoning_parser,
            return_token_id_information=self.config.return_token_id_information,
        )

    @cached_property
    def notices(self) -> answers.Notices:
        return answers.Notices(self.config.name)

    @cached_property
    def turns(self) -> answers.Turns:
        return answers.turns_for(self.config, self.notices)

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        params, began = body.model_dump(mode="json", exclude_unset=True), time.time()
        try:
            completion = await self._answer(request, self.converter.chat_request(params))
            response: Any = self.converter.response(completion, params)
            # Plain data: the route's response model validates it once.
            return response | {"created_at": began, "completed_at": time.time()}
        except RequestFormatError as error:
            raise HTTPException(422, str(error)) from error
        except AnswerFormatError as error:
            raise HTTPException(502, f"the endpoint's answer: {error}") from error

    async def chat_completions(
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        return await self._answer(request, body.model_dump(mode="json", exclude_unset=True))

    async def _answer(self, request: Request, chat: dict[str, Any]) -> Any:
        """The chat answer to a chat request, as plain data."""
        chat = answers.prepared(chat, self.config)
        async with self.slots:
            return await self.replicas.call(request.session, lambda endpoint: self._turn(endpoint, chat))

    async def _turn(self, endpoint: NeMoGymAsyncOpenAI, chat: dict[str, Any]) -> dict[str, Any]:
        try:
            completion = await self.turns.answer(endpoint, chat)
        except aiohttp.ClientResponseError as error:
            refusal = answers.too_long_message(error)
            if refusal is None:
                raise
            return answers.too_long_answer(self.config.model, refusal, self.notices)
        return answers.with_usage(completion, self.notices)


if __name__ == "__main__":
    VLLMModel.run_webserver()
