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

from nemo_gym.failures import MODEL_CODES, REQUEST_CODES, FailureKind, endpoint_error, is_about_model
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
        self._is_other_broken = False
        """Whether the newest trial ended without a response that says if the other route is there."""
        self._has_responded = False

    async def answer(self, request: Request) -> Answer:
        """The endpoint's answer, in the format of the route that was called."""
        try:
            if self.is_converting:
                answer = await self._converted(request)
            elif self.is_converting is False:
                answer = await self._ask(self._api, request)
            else:
                answer = await self._first(request)
        except EndpointError as error:
            if self._has_responded and _may_be_about_route(error):  # but the route is there
                raise error.with_kind(FailureKind.DATA) from error
            raise
        self._has_responded = True
        return answer

    async def _first(self, request: Request) -> Answer:
        """A request while it is not known which routes there are."""
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
        except RequestFormatError:  # the other route was not asked, so it may be there
            raise _with_kind(missing, FailureKind.DATA) from None
        except aiohttp.ClientResponseError as error:
            self._failed_trials += 1
            self._is_other_broken = False
            self._refusal = None if is_missing_route(error) else self._both(missing, error)
            raise self._failure(missing) from error
        except (aiohttp.ClientError, FormatError):
            self._failed_trials += 1
            self._is_other_broken, self._refusal = True, None
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
        if self._refusal is not None:
            return EndpointError(self._refusal)
        kind = FailureKind.INFRASTRUCTURE if self._is_other_broken else FailureKind.CONFIGURATION
        return _with_kind(missing, kind)

    def _both(
        self, missing: aiohttp.ClientResponseError, error: aiohttp.ClientResponseError
    ) -> ClientResponse:
        """With the status of the route that is there."""
        text = (
            f"the endpoint's {self._conversion.api} route: {error.message} "
            f"(its {self._api} route answered {missing.status}: {missing.message})"
        )
        return ClientResponse(error.status, (), json.dumps({"error": {"message": text}}).encode())


def _with_kind(error: aiohttp.ClientResponseError, kind: FailureKind) -> aiohttp.ClientResponseError:
    """The error with this kind, unless the endpoint is a server of ours, which names the kind itself."""
    return error.with_kind(kind) if isinstance(error, EndpointError) and not error.names_kind else error


def _may_be_about_route(error: EndpointError) -> bool:
    """Whether the error counts as configuration only because the route may be missing."""
    is_guess = error.kind is FailureKind.CONFIGURATION and not error.names_kind
    return is_guess and is_missing_route(error) and not is_about_model(error.response_content)


def is_missing_route(error: aiohttp.ClientResponseError) -> bool:
    """Whether an error of the endpoint may mean that it does not have the route."""
    if error.status not in _MISSING:
        return False
    code, _ = endpoint_error(getattr(error, "response_content", b""))
    return code not in MODEL_CODES | REQUEST_CODES
