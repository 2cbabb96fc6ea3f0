"""A transport to any ASGI application in this process."""

from starlette.types import ASGIApp

from nemo_gym.http import Call, ClientResponse
from nemo_gym.servers.asgi import Collector, local_scope, receive_body


class AsgiTransport:
    """Sends calls as a server would pass them on: `ServerClient(local_servers={"it": AsgiTransport(app)})`.

    What the application raises is raised.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def send(self, call: Call) -> ClientResponse:
        collector = Collector()
        await self._app(local_scope(call, self._app), receive_body(call.body), collector.send)
        body = b"".join(collector.body)
        return ClientResponse(collector.status, collector.headers, body, method=call.method, url=call.path)
