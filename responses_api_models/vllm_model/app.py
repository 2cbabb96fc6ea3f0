"""A model server for vLLM: calls the engine over Chat Completions, serves both APIs, and returns tokens."""

import time
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cached_property
from typing import Any

import aiohttp
from fastapi import HTTPException, Request

from nemo_gym.base_responses_api_model import Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.openai_utils.call_slots import CallSlots
from nemo_gym.responses_converter import RequestFormatError, ResponseFormatError, VLLMConverter
from responses_api_models.vllm_model import replica_call
from responses_api_models.vllm_model.replicas import REPLICA_TRIES, Replicas
from responses_api_models.vllm_model.vllm_model_config import VLLMModelConfig


class VLLMModel(SimpleResponsesAPIModel):
    config: VLLMModelConfig

    @classmethod
    def check_config(cls, config: VLLMModelConfig) -> None:
        for url in config.base_urls:
            NeMoGymAsyncOpenAI(url, config.api_key)  # raises ConfigError for an invalid address

    # Cached properties, because every request reads them: a pydantic private attribute is 30 times slower.
    @cached_property
    def replicas(self) -> Replicas:
        config = self.config
        # With several replicas, a call gives up one that cannot be reached, to try another.
        tries = None if len(config.base_urls) == 1 else REPLICA_TRIES
        endpoints = [
            NeMoGymAsyncOpenAI(
                url, config.api_key, config.default_headers, name=config.name, unreachable_tries=tries
            )
            for url in config.base_urls
        ]
        return Replicas(config.name, endpoints)

    @cached_property
    def slots(self) -> AbstractAsyncContextManager[None]:
        limit = self.config.max_concurrent_requests
        return CallSlots(limit) if limit is not None else nullcontext()

    @cached_property
    def converter(self) -> VLLMConverter:
        return VLLMConverter(
            uses_reasoning_parser=self.config.uses_reasoning_parser,
            return_token_id_information=self.config.return_token_id_information,
        )

    @cached_property
    def notices(self) -> replica_call.Notices:
        return replica_call.Notices(self.config.name)

    @cached_property
    def turns(self) -> replica_call.Turns:
        return replica_call.turns_for(self.config, self.notices)

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        params, began = body.model_dump(mode="json", exclude_unset=True), time.time()
        try:
            completion = await self._complete(request, self.converter.chat_request(params))
            response: Any = self.converter.response(completion, params)
            # Plain data: the route's response model validates it once.
            return response | {"created_at": began, "completed_at": time.time()}
        except RequestFormatError as error:
            raise HTTPException(422, str(error)) from error
        except ResponseFormatError as error:
            raise HTTPException(502, f"the endpoint's response cannot be read: {error}") from error

    async def chat_completions(
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        return await self._complete(request, body.model_dump(mode="json", exclude_unset=True))

    async def _complete(self, request: Request, chat: dict[str, Any]) -> Any:
        """The chat completion for a chat request, as plain data."""
        chat = replica_call.prepared(chat, self.config)
        async with self.slots:
            return await self.replicas.call(request.session, lambda endpoint: self._turn(endpoint, chat))

    async def _turn(self, endpoint: NeMoGymAsyncOpenAI, chat: dict[str, Any]) -> dict[str, Any]:
        try:
            completion = await self.turns.complete(endpoint, chat)
        except aiohttp.ClientResponseError as error:
            message = replica_call.too_long_message(error)
            if message is None:
                raise
            return replica_call.too_long_completion(self.config.model, message, self.notices)
        return replica_call.with_usage(completion, self.notices)


if __name__ == "__main__":
    VLLMModel.run_webserver()
