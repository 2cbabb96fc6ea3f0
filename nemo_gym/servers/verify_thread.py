"""`verify_in: thread`: a `verify` that computes for long runs in threads and does not block the event loop.

An `async def verify` gets an event loop of its own in the thread. It sees a shallow copy of the server, whose
client makes its calls in the event loop of the servers.
"""

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from nemo_gym.client import ServerClient, current_client
from nemo_gym.event_loop import end_forked_process
from nemo_gym.http import ClientResponse
from nemo_gym.servers.server_base import SimpleServer

T = TypeVar("T")


def in_threads(server: SimpleServer, verify: Callable[..., Any], threads: int) -> Callable[..., Any]:
    """The `verify` of a server, run in at most this many threads. It keeps its signature for FastAPI."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=f"verify {server.config.name}")

    @functools.wraps(verify)
    async def verify_in_thread(*arguments: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        client = ClientInThread(server.server_client, loop)
        own = server.model_copy(update={"server_client": client})
        bound = verify.__func__.__get__(own)  # type: ignore[attr-defined]  # a method
        run = _ThreadRun(functools.partial(bound, *arguments, **named), client)
        try:
            return await loop.run_in_executor(pool, copy_context().run, run)
        except asyncio.CancelledError:
            run.cancel()
            raise

    return verify_in_thread


class ClientInThread(ServerClient):
    """The client of servers that live in the event loop of another thread."""

    def __init__(self, client: ServerClient, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__.update(vars(client))
        self._client = client
        self._loop = loop

    async def get(self, server_name: str, url_path: str, **options: Any) -> ClientResponse:
        return await self._in_loop(self._client.get(server_name, url_path, **options))

    async def post(self, server_name: str, url_path: str, **options: Any) -> ClientResponse:
        return await self._in_loop(self._client.post(server_name, url_path, **options))

    async def request(self, server_name: str, url_path: str, method: str, **options: Any) -> ClientResponse:
        return await self._in_loop(self._client.request(server_name, url_path, method, **options))

    async def _in_loop(self, call: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))


class _ThreadRun:
    """One call of `verify` in a thread."""

    def __init__(self, verify: Callable[[], Any], client: ServerClient) -> None:
        self._verify = verify
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __call__(self) -> Any:
        owner = os.getpid()
        current_client.set(self._client)
        try:
            result = self._verify()
            return asyncio.run(self._awaited(result)) if inspect.iscoroutine(result) else result
        finally:
            end_forked_process(owner)

    def cancel(self) -> None:
        """Cancel a coroutine at its next `await`; a computation runs to its end."""
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _awaited(self, result: Coroutine[Any, Any, Any]) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await result
