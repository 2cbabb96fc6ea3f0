"""The client of an OpenAI-compatible endpoint: keyword arguments in, a dictionary out."""

from collections.abc import Mapping
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from nemo_gym.codec import decode_json
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

__all__ = ["RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES", "NeMoGymAsyncOpenAI"]


class NeMoGymAsyncOpenAI:
    """Calls one endpoint, again where a failure of the endpoint makes that worth while.

    `internal` says that the endpoint is one of our own model servers: it has made its retries itself.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        default_headers: Mapping[str, str] | None = None,
        internal: bool = False,
        *,
        retry: RetryPolicy = MODEL_ENDPOINT,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.api_key = api_key
        self.default_headers = dict(default_headers or {})
        self._headers = CIMultiDict(self.default_headers)
        if not URL(self.base_url).user:  # credentials in the URL stand for themselves
            self._headers.setdefault("Authorization", f"Bearer {api_key}")
        self.internal = internal
        self._retry = CONNECT_ONLY if internal else retry

    async def create_response(self, /, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", f"{self.base_url}/responses", json=kwargs)

    async def create_chat_completion(self, /, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", f"{self.base_url}/chat/completions", json=kwargs)

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
            response = await request(method, url, headers=self._headers, retry=self._retry, **options)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            where = URL(url).with_user(None).with_query(None)
            raise ServerUnreachableError("", f"no answer from {method} {where}: {reason}") from error
        if not response.ok:
            raise EndpointError(response)
        return _object(response, await response.read())


def _object(response: ClientResponse, body: bytes) -> dict[str, Any]:
    """The answer as a JSON object; anything else is a failure of the endpoint."""
    try:
        answer = decode_json(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        text = b"the endpoint's answer is not a JSON object: " + body[:500]
        raise EndpointError(ClientResponse(502, (), text, method=response.method, url=response.url))
    return answer
