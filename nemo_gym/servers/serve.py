"""Serving over HTTP with uvicorn: a hosted server in its own process, the head server beside other work."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.config import GymConfig, ServerInstance
from nemo_gym.errors import PortInUseError
from nemo_gym.event_loop import run_to_end
from nemo_gym.http.size_limits import SizeLimits
from nemo_gym.servers.activity_report import Activities
from nemo_gym.servers.gate import Access, Gate
from nemo_gym.servers.head import HeadServer
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.watchdog import BlockedWarnings, watching
from nemo_gym.undocumented.uvicorn_internals import serving

GRACE_S = 10
"""How long running requests may take to finish when a server stops."""
BACKLOG = 8192
"""Connections that may wait to be accepted: a collector opens hundreds at once."""
_START_UP_FAILED = 3
"""The exit code that uvicorn uses for a failed start-up."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, IPv4 or IPv6 as the host requires."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


class Startup:
    """Wraps an application; calls `on_ready` when its start-up is complete and it accepts requests."""

    def __init__(self, app: ASGIApp, on_ready: Callable[[], None] | None) -> None:
        self.is_complete = False
        self._app = app
        self._on_ready = on_ready

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(scope, receive, self._watched(send) if scope["type"] == "lifespan" else send)

    def _watched(self, send: Send) -> Send:
        async def send_and_report(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self.is_complete = True
                if self._on_ready is not None:
                    self._on_ready()

        return send_and_report


def uvicorn_config(app: ASGIApp, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        host=host,
        port=port,
        log_config=None,  # that of the process
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        # Longer than clients keep idle connections, so that the server never closes one first.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )


def guarded(app: ASGIApp, host: str, config: GymConfig) -> Gate:
    """The application of a server that listens on `host`, behind its gate."""
    return Gate(app, Access.to(host, config), SizeLimits.from_settings(config.data))


def serve(
    app: HostedServer,
    instance: ServerInstance,
    config: GymConfig,
    *,
    listener: socket.socket | None = None,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; running requests then have `GRACE_S` to finish."""
    startup = Startup(guarded(Activities(app), instance.host, config), on_ready)
    server = uvicorn.Server(uvicorn_config(startup, instance.host, instance.port or 0))
    try:
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
            run_to_end(_watched(server, [listener] if listener is not None else None))
    except asyncio.CancelledError:
        sys.exit("the code of this server cancelled all tasks of its process; remove that from its code")
    if not startup.is_complete:  # the start-up failed, and uvicorn has logged the error
        sys.exit(_START_UP_FAILED)


async def _watched(server: uvicorn.Server, listeners: list[socket.socket] | None) -> None:
    with watching(BlockedWarnings()):
        await server.serve(listeners)


@asynccontextmanager
async def serve_head(head: HeadServer, access: Access | None = None) -> AsyncIterator[None]:
    """Serve the head server while the context is open."""
    host, port = head.config.host, head.config.port
    try:
        listener = listen(host, port)
    except OSError as error:
        raise PortInUseError(
            f"the head server cannot listen on {host}:{port}: {error.strerror}; is another ng_run running? "
            "Stop it, or set another port with +head_server.port=<port>"
        ) from error
    config = uvicorn.Config(
        Gate(head.setup_webserver(), access or Access.to_host(host)),
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    with listener:
        async with serving(config, listener):
            yield
