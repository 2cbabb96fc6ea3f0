"""Transports: how a call reaches a server.

Three implementations: `servers.hosted.HostedServer` (in this process), `http.plain_client.PlainTransport`
(plain HTTP) and `http.aiohttp_client.AiohttpTransport` (everything else over HTTP). The same call gets the
same response from each.
"""

from collections.abc import Coroutine
from typing import Any, Protocol

from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse


class Transport(Protocol):
    """Sends calls."""

    def send(self, call: Call) -> Coroutine[Any, Any, ClientResponse]:
        """Send a call and return the complete response, whatever its status.

        Without a response, raises a connection error of aiohttp or a ServerUnreachableError.
        """
