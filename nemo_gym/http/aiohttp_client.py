"""The aiohttp transport: for calls over HTTP that the plain client cannot or must not send."""

from io import BytesIO
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse

_LARGE = 2**20
"""From this many bytes on, aiohttp expects the body as a file and writes it piece by piece."""


class AiohttpTransport:
    """Sends calls through the shared session of one event loop."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def send(self, call: Call) -> ClientResponse:
        """Send a call. Redirects are returned, not followed, as for a server in this process."""
        data = BytesIO(call.body) if len(call.body) >= _LARGE else call.body or None
        options: dict[str, Any] = {"data": data, "allow_redirects": False, **call.aiohttp_options}
        if "data" not in call.aiohttp_options:
            options.setdefault(
                "skip_auto_headers", ("Content-Type",)
            )  # part of the headers of the call, if it has one
        url, headers = URL(call.url, encoded=True), CIMultiDict(call.wire_headers())
        try:
            async with self.session.request(call.method, url, headers=headers, **options) as response:
                body = await response.read()
        except aiohttp.ClientResponseError as error:  # the response cannot be parsed
            if call.aiohttp_options:  # the caller may have asked for it, with `raise_for_status`
                raise
            raise aiohttp.ClientPayloadError(f"the response is not HTTP: {error.message}") from error
        received = tuple(response.headers.items())
        return ClientResponse(response.status, received, body, method=call.method, url=call.url)
