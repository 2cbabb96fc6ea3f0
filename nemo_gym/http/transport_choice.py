"""The HTTP clients of this process, and the choice between them."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import aiohttp
from pydantic import BaseModel

from nemo_gym.http.aiohttp_client import AiohttpTransport
from nemo_gym.http.call import Call
from nemo_gym.http.plain_client import PlainTransport, can_send
from nemo_gym.http.size_limits import SizeLimits
from nemo_gym.http.transport import Transport
from nemo_gym.undocumented import aiohttp_internals


class GlobalAIOHTTPAsyncClientConfig(BaseModel):
    """Size of the connection pool."""

    global_aiohttp_connector_limit: int = 100 * 1024
    global_aiohttp_connector_limit_per_host: int = 1024
    global_aiohttp_client_request_debug: bool = False


class _LoopClients(NamedTuple):
    """The clients of one event loop."""

    plain: PlainTransport
    aiohttp: AiohttpTransport
    keeper: AsyncGenerator[None, None]
    config: GlobalAIOHTTPAsyncClientConfig | None
    """The size that was set when they were created."""


class _SharedClients:
    """The clients of each event loop, because connections belong to the loop they were made on.

    An async generator holds the clients of one loop. `asyncio.run` finalises it before it closes the loop, so
    the clients are closed without a call in the script.
    """

    def __init__(self) -> None:
        self.config: GlobalAIOHTTPAsyncClientConfig | None = None
        self.is_plain_enabled = True
        self.limits = SizeLimits()
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopClients] = {}

    def current(self) -> _LoopClients:
        clients = self._by_loop.get(asyncio.get_running_loop())
        if clients is None or clients.config is not self.config or clients.aiohttp.session.closed:
            return self._open()
        return clients

    def plain(self) -> PlainTransport:
        """Usable even if the session of aiohttp has been closed."""
        clients = self._by_loop.get(asyncio.get_running_loop())
        return (clients or self._open()).plain

    def set_limits(self, limits: SizeLimits) -> None:
        self.limits = limits
        for clients in self._by_loop.values():
            clients.plain.limits = clients.aiohttp.limits = limits

    def _open(self) -> _LoopClients:
        """Create clients for the running event loop; they replace those it has."""
        # By default the pool has no limit: callers bound the number of calls in flight.
        config = self.config or GlobalAIOHTTPAsyncClientConfig(
            global_aiohttp_connector_limit=0, global_aiohttp_connector_limit_per_host=0
        )
        connector = aiohttp.TCPConnector(
            limit=config.global_aiohttp_connector_limit,
            limit_per_host=config.global_aiohttp_connector_limit_per_host,
            # Shorter than that of servers, so that a server does not close an idle connection while a request
            # is being sent on it.
            keepalive_timeout=15,
            # Also if aiodns is installed, whose errors do not say whether the name exists.
            resolver=aiohttp.ThreadedResolver(),
        )
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies belong to one rollout, never to the process
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        )
        loop, plain = asyncio.get_running_loop(), PlainTransport(self.limits)
        keeper = self._keep(loop, session, plain)
        clients = self._by_loop[loop] = _LoopClients(
            plain, AiohttpTransport(session, self.limits), keeper, self.config
        )
        # Run the generator up to its yield; nothing is awaited before it.
        with suppress(StopIteration):
            keeper.asend(None).send(None)
        return clients

    async def _keep(
        self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, plain: PlainTransport
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            plain.close()
            await session.close()
            clients = self._by_loop.get(loop)
            if clients is not None and clients.aiohttp.session is session:
                del self._by_loop[loop]


_shared = _SharedClients()  # the published functions use the clients of the process


def http_transport(call: Call) -> Transport:
    """The transport for a call over HTTP: the plain client or aiohttp.

    aiohttp is used if the plain client is switched off, cannot send the call or lacks an API of aiohttp. It
    is also used if the size of its connection pool was set, because that size limits all calls.
    """
    if (
        _shared.is_plain_enabled
        and _shared.config is None
        and aiohttp_internals.probe.passed
        and can_send(call)
    ):
        return _shared.plain()
    return _shared.current().aiohttp


def get_global_aiohttp_client(*_: Any, **__: Any) -> aiohttp.ClientSession:
    """The shared aiohttp session of the running event loop, created on first use."""
    return _shared.current().aiohttp.session


def set_global_aiohttp_client(cfg: GlobalAIOHTTPAsyncClientConfig) -> aiohttp.ClientSession:
    """Set the size of the shared connection pool; returns the session of the running event loop."""
    set_pool_size(cfg)
    return _shared.current().aiohttp.session


def set_pool_size(config: GlobalAIOHTTPAsyncClientConfig) -> None:
    """Set the size of the shared connection pool, also without a running event loop."""
    _shared.config = config


def is_global_aiohttp_client_setup() -> bool:
    return _shared.config is not None


CLIENT_SETTINGS = (
    "plain_http_client",
    "max_response_mb",
    "max_response_header_kb",
    "max_aggregate_metrics_mb",
)
"""The settings in a configuration that `apply_client_settings` reads."""


def apply_client_settings(settings: Mapping[str, Any]) -> None:
    """Use the settings of a configuration for the HTTP clients of this process; missing ones are defaults."""
    _shared.is_plain_enabled = settings.get("plain_http_client", True)
    _shared.set_limits(SizeLimits.from_settings(settings))


def is_plain_enabled() -> bool:
    return _shared.is_plain_enabled


@contextmanager
def client_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Like `apply_client_settings`, while the context is open."""
    before = _shared.is_plain_enabled, _shared.limits
    apply_client_settings(settings)
    try:
        yield
    finally:
        _shared.is_plain_enabled = before[0]
        _shared.set_limits(before[1])
