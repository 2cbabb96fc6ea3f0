"""The client of an OpenAI-compatible endpoint: keyword arguments in, a dictionary out.

An answer that comes as a stream is put together here, whoever asked for it.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiohttp
from multidict import CIMultiDict
from pydantic_core import from_json
from yarl import URL

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.errors import ConfigError
from nemo_gym.failures import Boundary, kind_of_exception
from nemo_gym.http import (
    CONNECT_ONLY,
    MODEL_ENDPOINT,
    RATE_LIMIT_ERROR_CODES,
    RETRY_ERROR_CODES,
    ClientResponse,
    EndpointError,
    RetryPolicy,
    ServerUnreachableError,
    request,
)

from .data import OddJson
from .streams import (
    BrokenStreamError,
    FailedStreamError,
    StreamError,
    chat_completion_from_chunks,
    events,
    response_from_events,
)

__all__ = ["RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES", "EndpointError", "NeMoGymAsyncOpenAI"]

Assembler = Callable[[Iterable[dict[str, Any]]], dict[str, Any]]

_RESPONSES = "/responses"
_CHAT = "/chat/completions"
_ASSEMBLERS: dict[str, Assembler] = {_RESPONSES: response_from_events, _CHAT: chat_completion_from_chunks}


class NeMoGymAsyncOpenAI:
    """Calls one endpoint, again where a failure of the endpoint makes that worth while.

    `internal` says that the endpoint is one of our own model servers: it has made its retries itself.
    `max_tries` and `request_timeout_s` take the place of what `retry` says; the time is that of a call with
    all its tries.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        default_headers: Mapping[str, str] | None = None,
        internal: bool = False,
        *,
        retry: RetryPolicy = MODEL_ENDPOINT,
        max_tries: int | None = None,
        request_timeout_s: float | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        address = _checked(self.base_url)
        self.api_key = api_key
        self.default_headers = dict(default_headers or {})
        self._headers = CIMultiDict(self.default_headers)
        if not address.user:  # credentials in the URL stand for themselves
            self._headers.setdefault("Authorization", f"Bearer {api_key}")
        self.internal = internal
        if max_tries is not None:
            retry = replace(retry, attempts=max_tries)
        if request_timeout_s is not None:
            retry = replace(retry, total_s=request_timeout_s)
        self._retry = CONNECT_ONLY if internal else retry

    async def create_response(self, /, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", f"{self.base_url}{_RESPONSES}", json=kwargs)

    async def create_chat_completion(self, /, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", f"{self.base_url}{_CHAT}", json=kwargs)

    async def create_completion(self, /, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", f"{self.base_url}/completions", json=kwargs)

    async def create_models(self, /, **kwargs: Any) -> dict[str, Any]:
        """What the endpoint serves."""
        return await self._call("GET", f"{self.base_url}/models", params=kwargs or None)

    async def create_tokenize(self, /, **kwargs: Any) -> dict[str, Any]:
        """Token ids of a text or a conversation; the route stands beside `/v1`, not below it."""
        return await self._call("POST", f"{self.base_url.removesuffix('/v1')}/tokenize", json=kwargs)

    async def _call(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        try:
            response = await request(
                method, url, headers=self._headers, retry=self._retry, read=_unstreamed, **options
            )
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            where = URL(url).with_user(None).with_query(None)
            kind = kind_of_exception(error, Boundary.ENDPOINT)
            raise ServerUnreachableError("", f"no response from {method} {where}: {reason}", kind) from error
        if not response.ok:
            raise EndpointError(response)
        return _object(response, await response.read())


def _checked(base_url: str) -> URL:
    with suppress(ValueError):
        address = URL(base_url)
        if address.scheme in ("http", "https") and address.host:
            return address
    shown = base_url.rpartition("@")[2]  # what is before it may be secret
    raise ConfigError(f"{shown!r} is no address of an endpoint; write it like http://host:8000/v1")


def _object(response: ClientResponse, body: bytes) -> dict[str, Any]:
    """The answer as a JSON object; anything else is a failure of the endpoint."""
    try:
        # Not NaN: what is read here may be handed on without being written as JSON, which would make it null.
        # (A number beyond all floats, 1e999, is infinite for a caller in this process and null for others.)
        answer = from_json(body, cache_strings="keys", allow_inf_nan=False)
    except ValueError:
        answer = _decoded_slowly(body)
    if not isinstance(answer, dict):
        raise EndpointError(_failure(response, b"the endpoint's answer is not a JSON object: " + body[:500]))
    return answer


def _decoded_slowly(body: bytes) -> OddJson | None:
    """An object that the fast codec does not read: it has NaN, or half a surrogate pair."""
    try:
        answer = decode_json(body)
    except (ValueError, RecursionError):
        return None
    return OddJson(answer) if isinstance(answer, dict) else None


def _failure(response: ClientResponse, text: bytes, status: int = 502) -> ClientResponse:
    return ClientResponse(status, (), text, method=response.method, url=response.url)


async def _unstreamed(response: ClientResponse) -> ClientResponse:
    """A stream as the answer that it brings; any other answer as it is."""
    body = await response.read()
    if body[:1] == b"{" or not response.ok or not _is_stream(response):
        return response
    assemble = next((made for route, made in _ASSEMBLERS.items() if response.url.endswith(route)), None)
    if assemble is None:
        return _failure(response, b"the endpoint answers with a stream on a route that has none")
    try:
        answer = assemble(events(body))
    except BrokenStreamError as error:
        raise aiohttp.ClientPayloadError(str(error)) from error
    except FailedStreamError as error:
        return _failure(response, encode_json({"error": error.error}), _status_of(error.error))
    except StreamError as error:
        return _failure(response, f"the endpoint's stream cannot be read: {error}".encode())
    return ClientResponse(200, (), encode_json(answer), method=response.method, url=response.url)


def _is_stream(response: ClientResponse) -> bool:
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    return kind.strip().lower() == "text/event-stream"


def _status_of(error: Any) -> int:
    """The status that an error within a stream would have had, had it come before the stream began."""
    said = error if isinstance(error, dict) else {}
    for value in (said.get("status"), said.get("code")):
        if isinstance(value, int | str) and str(value).isdecimal() and 400 <= int(value) <= 599:
            return int(value)
    names = f"{said.get('type')} {said.get('code')}".lower()
    if "rate_limit" in names:
        return 429
    return 400 if "invalid" in names or "context_length" in names else 502
