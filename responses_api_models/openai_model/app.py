"""Any OpenAI-compatible endpoint as a model server: both routes, whichever of them the endpoint has."""

import logging
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.formats.extra_body import laid_over
from nemo_gym.formats.usage_conversion import filled_usage
from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.openai_utils.call_slots import CallSlots
from nemo_gym.openai_utils.wire_data import takes_data
from nemo_gym.responses_converter import ResponsesConverter
from responses_api_models.openai_model.conversion_statuses import conversion_errors
from responses_api_models.openai_model.upstream import Api, Request, UpstreamRoute, upstream_routes

logger = logging.getLogger(__name__)


class OpenAIModelConfig(BaseResponsesAPIModelConfig):
    openai_base_url: str
    openai_api_key: str = Field(repr=False)
    openai_model: str
    """The model that every request gets, whatever model it names."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields of every request to the endpoint that does not have them itself."""
    openai_default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Maximum number of concurrent requests to the endpoint; None: as many as there are rollouts."""
    upstream_api: Literal["auto", "responses", "chat_completions"] = "auto"
    """Which API the endpoint has; requests of the other one are converted. auto: detected by calling it."""
    uses_reasoning_parser: bool = True
    """Whether a Chat Completions endpoint returns reasoning in a field of its own; otherwise it is in the
    text, between think tags. Used when requests are converted."""
    stream: bool = False
    """Request a stream and put it together: some gateways close connections that are silent for long."""
    request_timeout_s: float | None = Field(default=None, gt=0)
    """Longest time of one try of a call to the endpoint; None: `call_timeout_s` of the collection."""
    max_tries: int = Field(default=3, ge=1)
    """Maximum number of tries of a call that does not belong to a collection, including the first; those that
    get a 429 are not counted. In a collection, `max_attempts` limits the failures of a rollout."""


class OpenAIModel(SimpleResponsesAPIModel):
    config: OpenAIModelConfig

    @classmethod
    def check_config(cls, config: OpenAIModelConfig) -> None:
        NeMoGymAsyncOpenAI(config.openai_base_url, config.openai_api_key)  # refuses an invalid address

    # Cached properties, because pydantic looks private attributes up thirty times slower.
    @cached_property
    def endpoint(self) -> NeMoGymAsyncOpenAI:
        """Callers change its completions, so a client that replaces it must not keep references to them."""
        config = self.config
        return NeMoGymAsyncOpenAI(
            config.openai_base_url,
            config.openai_api_key,
            config.openai_default_headers,
            name=config.name,
            max_tries=config.max_tries,
            request_timeout_s=config.request_timeout_s,
        )

    @cached_property
    def slots(self) -> CallSlots | None:
        limit = self.config.max_concurrent_requests
        return CallSlots(limit) if limit is not None else None

    @cached_property
    def takes_seed(self) -> bool:
        """OpenAI's own Responses API rejects the parameter."""
        return urlsplit(self.config.openai_base_url).hostname != "api.openai.com"

    @cached_property
    def routes(self) -> dict[Api, UpstreamRoute]:
        converter = ResponsesConverter(uses_reasoning_parser=self.config.uses_reasoning_parser)
        return upstream_routes(self.config.name, self.config.upstream_api, converter, self._call_endpoint)

    @cached_property
    def warned_of(self) -> set[str]:
        return set()

    @takes_data
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        with conversion_errors:
            response: Any = await self.routes["responses"].generate(self._request(body))
        return response  # plain data, which the route validates once

    @takes_data
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        with conversion_errors:
            completion: Any = await self.routes["chat_completions"].generate(self._request(body))
        return completion

    def _request(self, body: BaseModel | Request) -> Request:
        request = body if isinstance(body, dict) else body.model_dump(mode="json", exclude_unset=True)
        request["model"] = self.config.openai_model
        return request

    async def _call_endpoint(self, api: Api, request: Request) -> dict[str, Any]:
        """The endpoint's completion on the route of `api`, with its usage filled in."""
        endpoint = self.endpoint
        create = endpoint.create_response if api == "responses" else endpoint.create_chat_completion
        request = self._prepared(api, request)
        if self.slots is None:
            completion = await create(**request)
        else:
            async with self.slots:
                completion = await create(**request)
        if not completion.get("usage") and completion.get("error") is None:
            self._warn("the endpoint reports no usage; counted as 0")
        completion["usage"] = filled_usage(completion.get("usage"), api)
        return completion

    def _prepared(self, api: Api, request: Request) -> Request:
        if self.config.stream:
            request = {**request, "stream": True}
            if api == "chat_completions":
                request["stream_options"] = {"include_usage": True, **(request.get("stream_options") or {})}
        request = laid_over(request, self.config.extra_body)
        if api == "responses" and not self.takes_seed and request.pop("seed", None) is not None:
            self._warn("this endpoint does not accept a seed; it is not sent")
        return request

    def _warn(self, text: str) -> None:
        if text not in self.warned_of:
            self.warned_of.add(text)
            logger.warning("%s: %s", self.config.name, text)


if __name__ == "__main__":
    OpenAIModel.run_webserver()
