"""Any OpenAI-compatible endpoint as a model server: both routes are forwarded."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)

logger = logging.getLogger(__name__)


class OpenAIModelConfig(BaseResponsesAPIModelConfig):
    openai_base_url: str
    openai_api_key: str = Field(repr=False)
    openai_model: str
    """The model asked for, whatever a request names."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Laid over every request."""
    openai_default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Most requests at the endpoint at once; None: as many as there are rollouts."""


class OpenAIModel(SimpleResponsesAPIModel):
    config: OpenAIModelConfig

    _warned: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Any) -> None:
        self.endpoint  # noqa: B018 - built now: an address that cannot be one is refused at start-up

    # What every request reads is a cached property: pydantic finds a private attribute thirty times slower.
    @cached_property
    def endpoint(self) -> NeMoGymAsyncOpenAI:
        config = self.config
        return NeMoGymAsyncOpenAI(
            config.openai_base_url, config.openai_api_key, config.openai_default_headers
        )

    @cached_property
    def slots(self) -> asyncio.Semaphore | None:
        limit = self.config.max_concurrent_requests
        return asyncio.Semaphore(limit) if limit is not None else None

    @cached_property
    def takes_seed(self) -> bool:
        """OpenAI's own Responses API refuses the parameter."""
        return urlsplit(self.config.openai_base_url).hostname != "api.openai.com"

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        request = self._request(body)
        if not self.takes_seed and request.pop("seed", None) is not None:
            self._warn_of_seed()
        return await self._forward(self.endpoint.create_response, request)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        return await self._forward(self.endpoint.create_chat_completion, self._request(body))

    def _request(
        self, body: NeMoGymResponseCreateParamsNonStreaming | NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> dict[str, Any]:
        given = body.model_dump(mode="json", exclude_unset=True)
        return {**given, "model": self.config.openai_model, **self.config.extra_body}

    def _warn_of_seed(self) -> None:
        if not self._warned:
            logger.warning("%s: this endpoint takes no seed; it is left out", self.config.name)
            self._warned = True

    async def _forward(self, call: Callable[..., Awaitable[dict[str, Any]]], request: dict[str, Any]) -> Any:
        """The endpoint's answer as plain data; the route's response model validates it once."""
        if self.slots is None:
            return await call(**request)
        async with self.slots:
            return await call(**request)


if __name__ == "__main__":
    OpenAIModel.run_webserver()
