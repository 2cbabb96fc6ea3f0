"""uvicorn: serving inside a running event loop without taking over its signals.

`Server.serve` installs signal handlers through `Server.capture_signals`, which is undocumented; a subclass
replaces it. If the probe fails, the server runs in a thread, where uvicorn installs no handlers.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from nemo_gym.undocumented.probe import Probe


class _QuietServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers to the owner of the event loop."""
        yield


@asynccontextmanager
async def serving(config: uvicorn.Config, listener: socket.socket) -> AsyncIterator[None]:
    """Serve while the context is open."""
    if not probe.passed:
        async with _serving_in_thread(config, listener):
            yield
        return
    server = _QuietServer(config)
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def _serving_in_thread(config: uvicorn.Config, listener: socket.socket) -> AsyncIterator[None]:
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="uvicorn", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join)


def _check() -> bool:
    config = uvicorn.Config("none", log_config=None)  # the default would reset uvicorn's loggers
    with _QuietServer(config).capture_signals():
        called = "capture_signals" in uvicorn.Server.serve.__code__.co_names
    return called and callable(uvicorn.Server.capture_signals)


probe = Probe("uvicorn", _check)
