"""One file of weights in service: its process is started, asked, started again when it dies, stopped.

Invariant: when `stop` is over, or the process that owns the engine is, the engine's process is gone too; and
nobody waits for an engine that will not come.
"""

import asyncio
import logging
import time
from collections import deque
from typing import Any

import aiohttp

from nemo_gym.errors import ConfigError
from nemo_gym.http import ClientResponse, EndpointError, ServerUnreachableError, request
from nemo_gym.local_engine.engine_process import EngineProcess
from nemo_gym.local_engine.engine_settings import EngineSettings
from nemo_gym.local_engine.uses import Uses

logger = logging.getLogger(__name__)

_TRIES = 2
"""Of a call during which the engine dies: the first may have been another one's fault."""
_NO_ANSWER = (aiohttp.ClientError, OSError)


class EngineError(ServerUnreachableError):
    """The engine is not there, or died while it was asked."""


class Serving:
    """`start`, then `ask`, in the end `stop`."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.uses = Uses()
        self.deaths = 0
        self.token_bytes: dict[int, bytes] = {}
        """What each token stands for; filled when it is first needed."""
        self._process = EngineProcess(settings)
        self._recent_deaths: deque[float] = deque()
        self._running = asyncio.Event()
        """Whether there is one to ask; also set when there never will be again."""
        self._is_over: str | None = None
        """Why there never will be."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it has loaded the weights."""
        await self._process.start()
        self._running.set()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End the process, whoever uses it."""
        self._end("the engine is being stopped")
        if self._watching is not None:  # first: it may be starting another one
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._process.end()

    async def stop_unused(self) -> None:
        """End the process when all who use it have finished, however long that takes."""
        try:
            await self.uses.over()
        finally:
            await self.stop()

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's answer; its refusal is an EndpointError, its death an EngineError."""
        response = await self._ask(path, body)
        if not response.ok:
            raise EndpointError(response)
        answer: dict[str, Any] = await response.json()
        return answer

    async def vocabulary_size(self) -> int:
        """How many tokens there are."""
        models = await self.ask("/v1/models", {})
        size: int = models["data"][0]["meta"]["n_vocab"]
        return size

    async def _ask(self, path: str, body: dict[str, Any]) -> ClientResponse:
        for _ in range(_TRIES):
            await self._running.wait()
            if self._is_over is not None:
                raise EngineError("", self._is_over)
            process = self._process
            url, method = process.address + path, "POST" if body else "GET"
            try:
                return await request(method, url, json=body or None, headers=process.headers)
            except _NO_ANSWER as error:
                if not await process.has_died():
                    raise EngineError("", f"the engine broke off: {error!r}") from error
                if self._process is process and self._is_over is None:
                    self._running.clear()  # whoever watches it may not have heard yet
        raise EngineError("", f"the engine died {_TRIES} times at this request. {self._process.last_words()}")

    async def _watch(self) -> None:
        """Start the engine again each time it dies, within its budget."""
        while True:
            code = await self._process.ended()
            self._running.clear()
            self.deaths += 1
            last_words = self._process.last_words()
            logger.warning("the engine died (exit code %s). %s", code, last_words)
            if not self._may_restart():
                self._give_up(f"the engine died too often, the last time with exit code {code}", last_words)
                return
            try:
                process = EngineProcess(self.settings)
                await process.start()
            except (ConfigError, OSError, ValueError) as error:
                self._give_up(f"the engine died and cannot be started again: {error}", last_words)
                return
            self._process = process
            self._running.set()
            logger.warning("the engine runs again")

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._recent_deaths.append(now)
        while self._recent_deaths[0] < now - self.settings.restart_window_s:
            self._recent_deaths.popleft()
        return len(self._recent_deaths) <= self.settings.max_restarts

    def _give_up(self, reason: str, last_words: str) -> None:
        settings = self.settings
        self._end(
            f"{reason}; it is started again at most {settings.max_restarts} times in "
            f"{settings.restart_window_s:g} s (max_restarts, restart_window_s). {last_words}"
        )
        logger.error("%s", self._is_over)

    def _end(self, reason: str) -> None:
        """Whoever waits for the engine is told that it does not come."""
        self._is_over = self._is_over or reason
        self._running.set()
