"""The client of an OpenAI-compatible endpoint: keyword arguments in, a dictionary out.

A streamed response is put together here, whether the caller asked for a stream or not.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiohttp
from multidict import CIMultiDict
from pydantic_core import from_json
from yarl import URL

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.endpoint_health import Endpoint
from nemo_gym.errors import ConfigError
from nemo_gym.failures import Boundary, FailureKind, status_in_stream
from nemo_gym.http import (
    CONNECT_ONLY,
    MODEL_ENDPOINT,
    RATE_LIMIT_ERROR_CODES,
    RETRY_ERROR_CODES,
    Call,
    ClientResponse,
    EndpointError,
    RetryPolicy,
    http_transport,
    parse_call,
    send_with_retries,
)
from nemo_gym.http.client_response import redirect_target
from nemo_gym.http.unreachable import reports_unreachable

from .streams import (
    BrokenStreamError,
    FailedStreamError,
    StreamError,
    chat_completion_from_chunks,
    events,
    response_from_events,
)
from .wire_data import OddJson

__all__ = ["RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES", "EndpointError", "NeMoGymAsyncOpenAI"]

Assembler = Callable[[Iterable[dict[str, Any]]], dict[str, Any]]

_RESPONSES = "/responses"
_CHAT = "/chat/completions"
_ASSEMBLERS: dict[str, Assembler] = {_RESPONSES: response_from_events, _CHAT: chat_completion_from_chunks}


class NeMoGymAsyncOpenAI:
    """Calls one endpoint, and retries calls that may succeed later.

    `internal`: the endpoint is one of our own model servers, which makes the retries itself. `name`: the
    model server, for messages. `max_tries`, `request_timeout_s` (for one try) and `unreachable_tries`
    override `retry`.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        default_headers: Mapping[str, str] | None = None,
        internal: bool = False,
        *,
        name: str = "",
        retry: RetryPolicy = MODEL_ENDPOINT,
        max_tries: int | None = None,
        request_timeout_s: float | None = None,
        unreachable_tries: int | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        address = _checked(self.base_url)
        self.api_key = api_key
        self.default_headers = dict(default_headers or {})
        self._headers = CIMultiDict(self.default_headers)
        if not address.user:  # credentials in the URL are sent instead
            self._headers.setdefault("Authorization", f"Bearer {api_key}")
        self._blank_calls: dict[str, Call] = {}
        """The calls of each route without their bodies."""
        self.internal = internal
        if max_tries is not None:
            retry = replace(retry, max_tries=max_tries)
        if request_timeout_s is not None:
            retry = replace(retry, try_timeout_s=request_timeout_s)
        if unreachable_tries is not None:
            retry = replace(retry, unreachable_tries=unreachable_tries)
        self._retry = CONNECT_ONLY if internal else retry
        shown = f"{address.scheme}://{self.base_url.partition('://')[2].rpartition('@')[2].partition('?')[0]}"
        self._endpoint = Endpoint(name or "endpoint", shown)

    async def create_response(self, /, **kwargs: Any) -> dict[str, Any]:
        call = self._post(f"{self.base_url}{_RESPONSES}", kwargs)
        with reports_unreachable("", call, Boundary.ENDPOINT):
            return _object(await self._send(call))

    async def create_chat_completion(self, /, **kwargs: Any) -> dict[str, Any]:
        call = self._post(f"{self.base_url}{_CHAT}", kwargs)
        with reports_unreachable("", call, Boundary.ENDPOINT):
            return _object(await self._send(call))

    async def create_completion(self, /, **kwargs: Any) -> dict[str, Any]:
        call = self._post(f"{self.base_url}/completions", kwargs)
        with reports_unreachable("", call, Boundary.ENDPOINT):
            return _object(await self._send(call))

    async def create_models(self, /, **kwargs: Any) -> dict[str, Any]:
        """The models that the endpoint serves."""
        call = parse_call("GET", f"{self.base_url}/models", params=kwargs or None, headers=self._headers)
        with reports_unreachable("", call, Boundary.ENDPOINT):
            return _object(await self._send(call))

    async def create_tokenize(self, /, **kwargs: Any) -> dict[str, Any]:
        """Token ids of a text or a conversation; the route is beside `/v1`, not below it."""
        call = self._post(f"{self.base_url.removesuffix('/v1')}/tokenize", kwargs)
        with reports_unreachable("", call, Boundary.ENDPOINT):
            return _object(await self._send(call))

    def _post(self, url: str, body: dict[str, Any]) -> Call:
        blank = self._blank_calls.get(url)
        if blank is None:
            blank = self._blank_calls[url] = parse_call("POST", url, json={}, headers=self._headers)
        return blank.with_body(encode_json(body))

    def _send(self, call: Call) -> Coroutine[Any, Any, ClientResponse]:
        endpoint = None if self.internal else self._endpoint
        return send_with_retries(http_transport(call), call, self._retry, read=_unstreamed, endpoint=endpoint)


def _checked(base_url: str) -> URL:
    with suppress(ValueError):
        address = URL(base_url)
        if address.scheme in ("http", "https") and address.host:
            return address
    shown = base_url.rpartition("@")[2]  # the part before it may be secret
    raise ConfigError(f"{shown!r} is not the address of an endpoint; write it like http://host:8000/v1")


def _object(response: ClientResponse) -> dict[str, Any]:
    """The JSON object of a response; an error status, or anything else, is a failure of the endpoint."""
    if not response.ok:
        raise EndpointError(response)
    if response.status >= 300:
        raise EndpointError(_redirected(response)).with_kind(FailureKind.CONFIGURATION)
    body = response.body
    try:
        # Not NaN: what is read here may be passed on without being written as JSON, which would make it null.
        # (A number beyond all floats, 1e999, is infinite for a caller in this process and null for others.)
        decoded = from_json(body, cache_strings="keys", allow_inf_nan=False)
    except ValueError:
        decoded = _decoded_slowly(body)
    if not isinstance(decoded, dict):
        text = b"the endpoint's response is not a JSON object: " + body[:500]
        raise EndpointError(_failure(response, text))
    return decoded


def _decoded_slowly(body: bytes) -> OddJson | None:
    """An object that the fast codec does not read: it has NaN, or half a surrogate pair."""
    try:
        decoded = decode_json(body)
    except (ValueError, RecursionError):
        return None
    return OddJson(decoded) if isinstance(decoded, dict) else None


def _redirected(response: ClientResponse) -> ClientResponse:
    """Redirects are not followed, because they would get the key."""
    text = (
        f"the endpoint responded with {response.status} and redirects to {redirect_target(response)}; "
        "redirects are not followed: give the final address as its base URL"
    )
    return _failure(response, text.encode("utf-8", "replace"))


def _failure(response: ClientResponse, text: bytes, status: int = 502) -> ClientResponse:
    return ClientResponse(status, (), text, method=response.method, url=response.url)


def _unstreamed(response: ClientResponse) -> ClientResponse:
    """A stream as the response that it carries; any other response as it is."""
    body = response.body
    if body[:1] == b"{" or not response.ok or not _is_stream(response):
        return response
    path = response.url.partition("?")[0]
    assemble = next((made for route, made in _ASSEMBLERS.items() if path.endswith(route)), None)
    if assemble is None:
        return _failure(response, b"the endpoint sent a stream on a route that has none")
    try:
        whole = assemble(events(body))
    except BrokenStreamError as error:
        raise aiohttp.ClientPayloadError(str(error)) from error
    except FailedStreamError as error:
        return _failure(response, encode_json({"error": error.error}), status_in_stream(error.error))
    except StreamError as error:
        return _failure(response, f"the endpoint's stream cannot be read: {error}".encode())
    return ClientResponse(200, (), encode_json(whole), method=response.method, url=response.url)


def _is_stream(response: ClientResponse) -> bool:
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    return kind.strip().lower() == "text/event-stream"
