"""How a request gets to the endpoint: on the route that was called, or converted on the other one.

Invariant: a way that has once brought an answer is kept. Until then every request asks on its own route
first; of those that find none there, one at a time tries the other, and the rest go by what it finds.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from nemo_gym.openai_utils.data import OddJson
from nemo_gym.openai_utils.endpoint_client import EndpointError
from nemo_gym.responses_converter import FormatError, RequestFormatError, ResponsesConverter
from nemo_gym.server_utils import ClientResponse

logger = logging.getLogger(__name__)

Api = Literal["responses", "chat_completions"]
Request = dict[str, Any]
Answer = dict[str, Any]
Ask = Callable[[Api, Request], Awaitable[Answer]]

_MISSING = (404, 405, 501)
"""Statuses of a route that is not there; a 404 may just as well be about what was asked for."""
_ABOUT_THE_REQUEST = frozenset(
    ("model_not_found", "DeploymentNotFound", "previous_response_not_found", "context_length_exceeded")
)
"""Codes of errors that only a route which is there can tell."""


@dataclass(frozen=True)
class Conversion:
    """To the other API and back."""

    api: Api
    request: Callable[[Request], Request]
    answer: Callable[[Answer, Request], Answer]


def ways_to(
    server_name: str, upstream: Literal["auto"] | Api, converter: ResponsesConverter, ask: Ask
) -> dict[Api, "Way"]:
    """The way of each route that is called; `upstream` says which API the endpoint has."""
    to_chat = Conversion("chat_completions", converter.chat_request, converter.response)
    to_responses = Conversion(
        "responses", converter.responses_request, lambda answer, _: converter.chat_completion(answer)
    )
    ways: dict[Api, Way] = {
        "responses": Way(server_name, "responses", to_chat, ask),
        "chat_completions": Way(server_name, "chat_completions", to_responses, ask),
    }
    if upstream != "auto":
        for api, way in ways.items():
            way.is_converting = api != upstream
    return ways


class Way:
    """The way of the requests of one route."""

    def __init__(self, server_name: str, api: Api, conversion: Conversion, ask: Ask) -> None:
        self.is_converting: bool | None = None
        """Whether requests go to the other API; None: not known yet."""
        self._server_name = server_name
        self._api = api
        self._conversion = conversion
        self._ask = ask
        self._trial = asyncio.Lock()
        self._failed_trials = 0
        self._refusal: ClientResponse | None = None
        """What the other route refused the newest trial with, if it is there."""

    async def answer(self, request: Request) -> Answer:
        """The endpoint's answer, in the format of the route that was called."""
        if self.is_converting:
            return await self._converted(request)
        if self.is_converting is False:
            return await self._ask(self._api, request)
        try:
            answer = await self._ask(self._api, request)
        except aiohttp.ClientResponseError as error:
            if not is_missing_route(error):
                raise
            return await self._try_other(request, error)
        if self.is_converting is None:
            self.is_converting = False
        return answer

    async def _converted(self, request: Request) -> Answer:
        converted_request, began = self._conversion.request(request), time.time()
        answer = await self._ask(self._conversion.api, converted_request)
        converted = self._conversion.answer(answer, request)
        if self._api == "responses":  # Chat Completions knows one time, in whole seconds
            converted |= {"created_at": began, "completed_at": time.time()}
        return OddJson(converted) if type(answer) is OddJson else converted

    async def _try_other(self, request: Request, missing: aiohttp.ClientResponseError) -> Answer:
        """`missing` is what the route itself answered; it stands where the other brings nothing."""
        failed_before = self._failed_trials
        async with self._trial:
            if self.is_converting is None and self._failed_trials == failed_before:
                return await self._one_trial(request, missing)
        if not self.is_converting:
            raise self._failure(missing)
        return await self._converted(request)

    async def _one_trial(self, request: Request, missing: aiohttp.ClientResponseError) -> Answer:
        try:
            answer = await self._converted(request)
        except RequestFormatError:  # says nothing about the endpoint
            raise missing from None
        except aiohttp.ClientResponseError as error:
            self._failed_trials += 1
            self._refusal = None if is_missing_route(error) else self._both(missing, error)
            raise self._failure(missing) from error
        except (aiohttp.ClientError, FormatError):
            self._failed_trials += 1
            self._refusal = None
            raise
        self.is_converting = True
        logger.warning(
            "%s: the endpoint answers %d on its %s route; from now on such requests are converted and go to "
            "its %s route (upstream_api: %s says so from the start)",
            self._server_name,
            missing.status,
            self._api,
            self._conversion.api,
            self._conversion.api,
        )
        return answer

    def _failure(self, missing: aiohttp.ClientResponseError) -> aiohttp.ClientResponseError:
        return missing if self._refusal is None else EndpointError(self._refusal)

    def _both(
        self, missing: aiohttp.ClientResponseError, error: aiohttp.ClientResponseError
    ) -> ClientResponse:
        """With the status of the route that is there."""
        text = (
            f"the endpoint's {self._conversion.api} route: {error.message} "
            f"(its {self._api} route answered {missing.status}: {missing.message})"
        )
        return ClientResponse(error.status, (), json.dumps({"error": {"message": text}}).encode())


def is_missing_route(error: aiohttp.ClientResponseError) -> bool:
    """Whether an error of the endpoint may mean that it has no such route."""
    if error.status not in _MISSING:
        return False
    try:
        said = json.loads(getattr(error, "response_content", b""))
    except (ValueError, RecursionError):
        return True
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        said = said["error"]
    return not isinstance(said, dict) or str(said.get("code")) not in _ABOUT_THE_REQUEST
