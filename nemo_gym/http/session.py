"""The process's HTTP client: one aiohttp session for each event loop."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
from pydantic import BaseModel

from nemo_gym.http.plain_client import PlainPool
from nemo_gym.undocumented import aiohttp_internals


class GlobalAIOHTTPAsyncClientConfig(BaseModel):
    """Size of the connection pool."""

    global_aiohttp_connector_limit: int = 100 * 1024
    global_aiohttp_connector_limit_per_host: int = 1024
    global_aiohttp_client_request_debug: bool = False


class _Kept(NamedTuple):
    session: aiohttp.ClientSession
    keeper: AsyncGenerator[None, None]
    pool: PlainPool


class _SharedClients:
    """One aiohttp session for each event loop, because a session belongs to the loop it was made on.

    Each is held by an async generator: `asyncio.run` finalises those before it closes the loop, so a
    script that never heard of the session still closes it.
    """

    def __init__(self) -> None:
        self.config: GlobalAIOHTTPAsyncClientConfig | None = None
        self._open_ones: dict[asyncio.AbstractEventLoop, _Kept] = {}

    def get(self) -> aiohttp.ClientSession:
        return self._kept().session

    def pool(self) -> PlainPool | None:
        """The plain client; None if aiohttp serves all calls: its pool was sized, or the probe failed."""
        return self._kept().pool if self.config is None and aiohttp_internals.probe.passed else None

    def _kept(self) -> _Kept:
        kept = self._open_ones.get(asyncio.get_running_loop())
        return self._open() if kept is None or kept.session.closed else kept

    def _open(self) -> _Kept:
        # Unless somebody sized it, the pool holds nobody back: callers bound what is in flight.
        config = self.config or GlobalAIOHTTPAsyncClientConfig(
            global_aiohttp_connector_limit=0, global_aiohttp_connector_limit_per_host=0
        )
        connector = aiohttp.TCPConnector(
            limit=config.global_aiohttp_connector_limit,
            limit_per_host=config.global_aiohttp_connector_limit_per_host,
            # Shorter than a server's, so that it is never the server who closes an idle connection
            # at the moment a request goes out on it.
            keepalive_timeout=15,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies belong to one rollout, never to the process
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        )
        pool = PlainPool()
        keeper = self._keep(asyncio.get_running_loop(), session, pool)
        kept = self._open_ones[asyncio.get_running_loop()] = _Kept(session, keeper, pool)
        # Runs the generator up to its yield: nothing is awaited before it.
        with suppress(StopIteration):
            keeper.asend(None).send(None)
        return kept

    async def _keep(
        self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, pool: PlainPool
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            pool.close()
            await session.close()
            kept = self._open_ones.get(loop)
            if kept is not None and kept.session is session:
                del self._open_ones[loop]


_shared = _SharedClients()  # the contract offers the process's client as free functions


def get_global_aiohttp_client(*_: Any, **__: Any) -> aiohttp.ClientSession:
    """The shared HTTP client of the running event loop, made on first use."""
    return _shared.get()


def set_global_aiohttp_client(cfg: GlobalAIOHTTPAsyncClientConfig) -> aiohttp.ClientSession:
    """Size the shared client; takes effect for the running event loop at once."""
    _shared.config = cfg
    return _shared._open().session


def shared_pool() -> PlainPool | None:
    """The lean client of the running event loop; None where somebody sized the shared aiohttp client."""
    return _shared.pool()


def is_global_aiohttp_client_setup() -> bool:
    return _shared.config is not None
