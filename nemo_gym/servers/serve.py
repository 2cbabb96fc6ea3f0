"""Serving over HTTP with uvicorn: a hosted server for the life of its process, the head server meanwhile."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import uvicorn

from nemo_gym.config import ServerInstance
from nemo_gym.errors import PortInUseError
from nemo_gym.servers.activities import Activities
from nemo_gym.servers.head import HeadServer
from nemo_gym.servers.hosted import HostedServer

GRACE_S = 10
"""How long running requests may take to finish once a server is told to stop."""
BACKLOG = 8192
"""Connections that may wait to be accepted: a collector opens hundreds at once."""
_START_UP_FAILED = 3
"""uvicorn's own exit code for it."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, on whichever kind of address the host is."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


class _Server(uvicorn.Server):
    """Says when it accepts requests."""

    on_ready: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.on_ready is not None:
            self.on_ready()


def uvicorn_config(app: HostedServer, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        Activities(app),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        # Longer than the client keeps an idle connection, so that the server is never first to close it.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )


def serve(
    app: HostedServer,
    instance: ServerInstance,
    *,
    listener: socket.socket | None = None,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; running requests are given some seconds to finish."""
    server = _Server(uvicorn_config(app, instance.host, instance.port or 0))
    server.on_ready = on_ready
    with suppress(KeyboardInterrupt):  # uvicorn raises Ctrl-C again once it has stopped
        server.run([listener] if listener is not None else None)
    if not server.started:  # its start-up raised, and uvicorn has logged it
        sys.exit(_START_UP_FAILED)


class _HeadServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever runs the event loop."""
        yield


@asynccontextmanager
async def serve_head(head: HeadServer) -> AsyncIterator[None]:
    """The head server answers while the context is open."""
    host, port = head.config.host, head.config.port
    try:
        listener = listen(host, port)
    except OSError as error:
        raise PortInUseError(
            f"the head server cannot listen on {host}:{port}: {error.strerror}; is another ng_run up? "
            "Stop it, or set another port with +head_server.port=<port>"
        ) from error
    server = _HeadServer(
        uvicorn.Config(
            head.setup_webserver(), log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
    )
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listener.close()
