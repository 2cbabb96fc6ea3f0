"""The application of a hosted server, with its sessions, failure responses and background tasks."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from nemo_gym.http import Call, ClientResponse, ServerUnreachableError
from nemo_gym.servers.asgi import Collector, Reply
from nemo_gym.servers.failure_responses import Failures
from nemo_gym.servers.sessions import SessionStore
from nemo_gym.undocumented.starlette_internals import lifespan

BACKGROUND_S = 10.0
"""How long background tasks may run once the server closes."""


class HostedApp:
    """What a hosted server and its requests share."""

    def __init__(self, name: str, app: FastAPI, sessions: SessionStore, failures: Failures) -> None:
        self.name = name
        self.app = app
        self.sessions = sessions
        self.failures = failures
        self.state: Mapping[str, Any] = {}
        """The state that the application's lifespan yields."""
        self._background: set[asyncio.Task[None]] = set()
        """Tasks that continue after a caller in this process has its response."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start-up and shutdown of the application, unless uvicorn runs them."""
        async with lifespan(self.app) as state:
            self.state = state
            yield
            await self.sessions.end_all()
            if self._background:
                await asyncio.wait(self._background, timeout=BACKGROUND_S)

    @property
    def has_background(self) -> bool:
        """Whether background tasks are running."""
        return bool(self._background)

    async def first_reply(self, responding: Coroutine[Any, Any, None], collector: Collector) -> Reply:
        """The response of an application as soon as it is complete; a background task continues."""
        task = asyncio.ensure_future(responding)
        whole = asyncio.ensure_future(collector.whole.wait())
        try:
            await asyncio.wait({task, whole}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            whole.cancel()
        if not task.done():
            self._background.add(task)
            task.add_done_callback(self._end_background)
        elif error := task.exception():
            if not collector.status or not isinstance(error, Exception):
                raise error
            self.failures.log(error)
        return collector.reply()

    def _end_background(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.failures.log(error)

    def client_response(self, call: Call, reply: Reply) -> ClientResponse:
        """The response to a call; raises an error if the reply is incomplete."""
        status, headers, body = reply
        if not status:
            reason = f"the response to {call.method} {call.path} was cut off"
            raise ServerUnreachableError(self.name, reason)
        return ClientResponse(status, headers, body, method=call.method, url=self.name + call.path)
