"""Which route of the endpoint gets a request: that of its own API, or, converted, that of the other one.

Invariant: once a route has responded, it is kept. Until then every request goes to its own route first. If
that is missing, one request at a time tries the other route, and the rest follow its result. An error that
is about the request of the trial concerns no other request.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from nemo_gym.failures import (
    MISSING_ROUTE_STATUSES,
    MODEL_CODES,
    REQUEST_CODES,
    FailureKind,
    endpoint_error,
    is_about_model,
)
from nemo_gym.openai_utils.endpoint_client import EndpointError
from nemo_gym.openai_utils.wire_data import OddJson
from nemo_gym.responses_converter import FormatError, RequestFormatError, ResponsesConverter
from nemo_gym.server_utils import ClientResponse

logger = logging.getLogger(__name__)

Api = Literal["responses", "chat_completions"]
Request = dict[str, Any]
Completion = dict[str, Any]
"""A model response or a chat completion."""
CallEndpoint = Callable[[Api, Request], Awaitable[Completion]]


@dataclass(frozen=True)
class Conversion:
    """To the other API and back."""

    api: Api
    request: Callable[[Request], Request]
    completion: Callable[[Completion, Request], Completion]


def upstream_routes(
    server_name: str, upstream: Literal["auto"] | Api, converter: ResponsesConverter, call: CallEndpoint
) -> dict[Api, "UpstreamRoute"]:
    """Where the requests of each API go; `upstream` says which API the endpoint has."""
    to_chat = Conversion("chat_completions", converter.chat_request, converter.response)
    to_responses = Conversion(
        "responses", converter.responses_request, lambda response, _: converter.chat_completion(response)
    )
    routes: dict[Api, UpstreamRoute] = {
        "responses": UpstreamRoute(server_name, "responses", to_chat, call),
        "chat_completions": UpstreamRoute(server_name, "chat_completions", to_responses, call),
    }
    if upstream != "auto":
        for api, route in routes.items():
            route.is_converting = api != upstream
    return routes


class UpstreamRoute:
    """Where the requests of one API go."""

    def __init__(self, server_name: str, api: Api, conversion: Conversion, call: CallEndpoint) -> None:
        self.is_converting: bool | None = None
        """Whether requests go to the other API; None: not known yet."""
        self._server_name = server_name
        self._api = api
        self._conversion = conversion
        self._call = call
        self._trial = asyncio.Lock()
        self._failed_trials = 0
        self._refusal: ClientResponse | None = None
        """The error of the other route in the newest trial, if that route exists."""
        self._is_other_broken = False
        """Whether the newest trial ended without a response that says if the other route exists."""
        self._has_responded = False

    async def generate(self, request: Request) -> Completion:
        """The endpoint's completion, in the API of the request."""
        try:
            if self.is_converting:
                completion = await self._converted(request)
            elif self.is_converting is False:
                completion = await self._call(self._api, request)
            else:
                completion = await self._first(request)
        except EndpointError as error:
            if self._has_responded and _may_be_about_route(error):  # but the route exists
                raise error.with_kind(FailureKind.DATA) from error
            raise
        self._has_responded = True
        return completion

    async def _first(self, request: Request) -> Completion:
        """A request while it is not known which routes the endpoint has."""
        try:
            completion = await self._call(self._api, request)
        except aiohttp.ClientResponseError as error:
            if not is_missing_route(error):
                raise
            return await self._try_other(request, error)
        if self.is_converting is None:
            self.is_converting = False
        return completion

    async def _converted(self, request: Request) -> Completion:
        converted_request, began = self._conversion.request(request), time.time()
        completion = await self._call(self._conversion.api, converted_request)
        converted = self._conversion.completion(completion, request)
        if self._api == "responses":  # Chat Completions has one time, in whole seconds
            converted |= {"created_at": began, "completed_at": time.time()}
        return OddJson(converted) if type(completion) is OddJson else converted

    async def _try_other(self, request: Request, missing: aiohttp.ClientResponseError) -> Completion:
        """`missing` is the error of the own route, raised if the other one does not respond either."""
        failed_before = self._failed_trials
        async with self._trial:
            if self.is_converting is None and self._failed_trials == failed_before:
                return await self._one_trial(request, missing)
        if self.is_converting:
            return await self._converted(request)
        if self._refused_one_request():
            return await self._one_trial(request, missing)
        raise self._failure(missing)

    def _refused_one_request(self) -> bool:
        """Whether the other route exists and has refused the request of the newest trial only."""
        return self._refusal is not None and EndpointError(self._refusal).kind is FailureKind.DATA

    async def _one_trial(self, request: Request, missing: aiohttp.ClientResponseError) -> Completion:
        try:
            completion = await self._converted(request)
        except RequestFormatError:  # the other route was not called, so it may exist
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
        if self.is_converting is not None:  # another request has decided meanwhile
            return completion
        self.is_converting = True
        logger.warning(
            "%s: the endpoint responds with %d on its %s route; from now on such requests are converted and "
            "go to its %s route (set upstream_api: %s to convert from the start)",
            self._server_name,
            missing.status,
            self._api,
            self._conversion.api,
            self._conversion.api,
        )
        return completion

    def _failure(self, missing: aiohttp.ClientResponseError) -> aiohttp.ClientResponseError:
        if self._refusal is not None:
            return EndpointError(self._refusal)
        kind = FailureKind.INFRASTRUCTURE if self._is_other_broken else FailureKind.CONFIGURATION
        return _with_kind(missing, kind)

    def _both(
        self, missing: aiohttp.ClientResponseError, error: aiohttp.ClientResponseError
    ) -> ClientResponse:
        """An error with the status of the route that exists."""
        text = (
            f"the endpoint's {self._conversion.api} route: {error.message} "
            f"(its {self._api} route responded with {missing.status}: {missing.message})"
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
    if error.status not in MISSING_ROUTE_STATUSES:
        return False
    # A 404 may also be about what was asked for.
    code = endpoint_error(getattr(error, "response_content", b"")).code
    return code not in MODEL_CODES | REQUEST_CODES
