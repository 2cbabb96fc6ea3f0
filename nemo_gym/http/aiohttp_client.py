"""The aiohttp transport: for calls over HTTP that the plain client cannot or must not send."""

from io import BytesIO
from typing import Any

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from multidict import CIMultiDict
from yarl import URL

from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse
from nemo_gym.http.plain_client import SWITCHED_PROTOCOLS
from nemo_gym.http.response_body import ACCEPTED_CODINGS, ResponseBody
from nemo_gym.http.size_limits import SizeLimits, TooLargeError, header_bytes, too_large

_LARGE = 2**20
"""From this many bytes on, aiohttp expects the body as a file and writes it piece by piece."""
_MOST_HEADERS = 1024


class AiohttpTransport:
    """Sends calls through the shared session of one event loop."""

    def __init__(self, session: aiohttp.ClientSession, limits: SizeLimits = SizeLimits()) -> None:  # noqa: B008  # immutable
        self.session = session
        self.limits = limits

    async def send(self, call: Call) -> ClientResponse:
        """Send a call. Redirects are returned, not followed, as for a server in this process."""
        url, headers = URL(call.url, encoded=True), CIMultiDict(call.wire_headers())
        headers.setdefault("Accept-Encoding", ACCEPTED_CODINGS)
        try:
            async with self.session.request(
                call.method, url, headers=headers, **self._options(call)
            ) as response:
                body = await self._read(call, response)
        except aiohttp.ClientResponseError as error:  # the response cannot be parsed
            if _is_line_too_long(error):
                raise too_large(call, self.limits, TooLargeError("header_bytes")) from error
            if call.aiohttp_options:  # the caller may have asked for it, with `raise_for_status`
                raise
            raise aiohttp.ClientPayloadError(f"the response is not HTTP: {error.message}") from error
        except TooLargeError as error:
            raise too_large(call, self.limits, error) from error
        received = tuple(response.headers.items())
        return ClientResponse(response.status, received, body, method=call.method, url=call.url)

    def _options(self, call: Call) -> dict[str, Any]:
        data = BytesIO(call.body) if len(call.body) >= _LARGE else call.body or None
        options = {
            "data": data,
            "allow_redirects": False,
            **call.aiohttp_options,
            "auto_decompress": False,  # `ResponseBody` does it, within the limit
            "max_line_size": self.limits.header_bytes,
            "max_field_size": self.limits.header_bytes,
            "max_headers": _MOST_HEADERS,
        }
        if "data" not in call.aiohttp_options:
            options.setdefault(
                "skip_auto_headers", ("Content-Type",)
            )  # part of the headers of the call, if it has one
        return options

    async def _read(self, call: Call, response: aiohttp.ClientResponse) -> bytes:
        if response.status == 101:
            raise aiohttp.ClientPayloadError(SWITCHED_PROTOCOLS)
        if header_bytes(response.raw_headers) > self.limits.header_bytes:
            raise TooLargeError("header_bytes")
        limit = self.limits.response_to(call)
        if (response.content_length or 0) > limit and call.method != "HEAD":
            raise TooLargeError("response_bytes")
        body = ResponseBody(response.headers.get("Content-Encoding", ""), limit)
        async for piece in response.content.iter_any():
            body.feed(piece)
        return body.whole()


def _is_line_too_long(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, LineTooLong):
        error = error.__cause__
    return error is not None
