"""A model server for a real LLM on this machine: it supervises llama.cpp in a child process."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import PrivateAttr

from nemo_gym.base_responses_api_model import Body, SimpleResponsesAPIModel
from nemo_gym.config_types import ConfigError
from nemo_gym.local_engine import LocalEngine, generate
from nemo_gym.local_engine.engine_generation import PromptTooLongError
from nemo_gym.local_engine.prompt_ids import Conversation, ReplayError, ends_turns_with, only_token
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import RequestFormatError, VLLMConverter
from responses_api_models.local_model import chat_completion, weight_updates
from responses_api_models.local_model.accepted_grammars import Grammars
from responses_api_models.local_model.constraints import constraints_of, offered_tools
from responses_api_models.local_model.local_model_config import LocalModelConfig
from responses_api_models.local_model.messages import checked_messages
from responses_api_models.local_model.request_parameters import BadParameterError, sampling_of

DRAIN_S = 3.0
"""How long generations may still run when the server stops."""


class LocalModel(SimpleResponsesAPIModel):
    config: LocalModelConfig

    _eos_token_id: int | None = PrivateAttr(default=None)
    _supports_tools: bool = PrivateAttr(default=False)
    _vocabulary: int = PrivateAttr(default=0)
    _grammars: Grammars = PrivateAttr(default_factory=Grammars)

    @classmethod
    def check_config(cls, config: LocalModelConfig) -> None:
        config.engine_settings()

    @classmethod
    def is_one_per_run(cls, settings: Mapping[str, Any]) -> bool:
        return True

    def setup_webserver(self) -> FastAPI:
        self.engine  # noqa: B018 - built now: a missing file is reported before anything is started
        app = super().setup_webserver()
        app.post("/load_weights")(self.load_weights)
        return app

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        await self.engine.start()
        try:
            await self._inspect_model()
            yield
        finally:
            await self.engine.stop(DRAIN_S)

    async def _inspect_model(self) -> None:
        engine, config = self.engine, self.config
        properties = await engine.call("/props", {})
        self._supports_tools = properties["chat_template_caps"]["supports_tools"]
        self._vocabulary = await engine.vocabulary_size()
        eos_token = config.eos_token or properties["eos_token"]
        self._eos_token_id = await only_token(engine, eos_token)
        if config.return_token_id_information and not await ends_turns_with(engine, self._eos_token_id):
            raise ConfigError(
                f"the chat template of {self.model_name} does not end turns with {eos_token!r}, so token ids "
                "cannot be replayed; set eos_token to the token that ends a turn in the template"
            )

    @cached_property
    def engine(self) -> LocalEngine:
        return LocalEngine(self.config.engine_settings())

    @cached_property
    def converter(self) -> VLLMConverter:
        return VLLMConverter(return_token_id_information=True)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        params, began = body.model_dump(mode="json", exclude_unset=True), time.time()
        try:
            request = self.converter.chat_request(params)
        except RequestFormatError as error:
            raise HTTPException(400, str(error)) from error
        completion = await self._complete(request)
        params = weight_updates.versioned_params(params, completion)
        response: Any = self.converter.response(completion, params)
        return response | {"created_at": began, "completed_at": time.time()}

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        return await self._complete(body.model_dump(mode="json", exclude_unset=True))

    async def load_weights(self, body: weight_updates.LoadWeights = Body()) -> weight_updates.LoadWeights:
        return await weight_updates.load_weights(self.engine, body, self.config)

    async def _complete(self, request: dict[str, Any]) -> Any:
        try:
            with self.engine.in_use():
                return await self._generate(request)
        except (BadParameterError, ReplayError) as error:
            raise HTTPException(400, str(error)) from error

    async def _generate(self, request: dict[str, Any]) -> dict[str, Any]:
        sampling, tools = sampling_of(request, self._vocabulary), offered_tools(request)
        if tools and not self._supports_tools:
            raise BadParameterError(
                f"tools: the chat template of {self.model_name} does not support tools; set chat_template"
            )
        kwargs = self.config.chat_template_kwargs | sampling.template_kwargs
        conversation = Conversation(checked_messages(request.get("messages")), tools, kwargs)
        prompt = await conversation.prompt(self.engine, self._eos_token_id)
        with_tokens = self.config.return_token_id_information
        top_log_probs = 0 if with_tokens and sampling.top_log_probs is None else sampling.top_log_probs
        parameters = sampling.parameters | constraints_of(request)
        await self._grammars.check(self.engine, parameters.get("grammar"))
        try:
            generation = await generate(self.engine, prompt, parameters, top_log_probs=top_log_probs)
        except PromptTooLongError:
            chat_completion.warn_about_long_prompts(self.config.name, self.config.context)
            empty = chat_completion.empty_completion(len(prompt), self.model_name)
            return weight_updates.versioned_completion(empty, self.engine.settings.weight_version)
        contents = chat_completion.CompletionContents(
            bool(tools), with_tokens, sampling.top_log_probs is not None
        )
        completion = chat_completion.completion(generation, prompt, self.model_name, contents)
        return weight_updates.versioned_completion(completion, generation.weight_version)

    @cached_property
    def model_name(self) -> str:
        """The name of the configured weights. Weights loaded later differ only by their version."""
        return self.config.find_weights(self.config.model_path).stem


if __name__ == "__main__":
    LocalModel.run_webserver()
