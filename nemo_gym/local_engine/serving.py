"""Serves one file of weights: starts its process, calls it, restarts it when it dies, stops it.

Invariant: after `stop`, or when the owner's process ends, the engine's process has ended too. No caller waits
for an engine that will not be started again.
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
"""How many times a call is made if the engine dies: another call may have caused the first death."""
_CONNECTION_ERRORS = (aiohttp.ClientError, OSError)


class EngineError(ServerUnreachableError):
    """The engine is not running, or died during a call."""


class Serving:
    """Call `start` first, then `call` any number of times, and `stop` at the end."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.uses = Uses()
        self.deaths = 0
        self.token_bytes: dict[int, bytes] = {}
        """The bytes of each token id; filled when first needed."""
        self._process = EngineProcess(settings)
        self._recent_deaths: deque[float] = deque()
        self._running = asyncio.Event()
        """Set while the process can be called; also set when it will not be started again."""
        self._end_reason: str | None = None
        """Why the process will not be started again."""
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
        """End the process, even if it is in use."""
        self._end("the engine is being stopped")
        if self._watching is not None:  # first, because it may be starting another process
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._process.end()

    async def stop_unused(self) -> None:
        """Wait until the process is not in use, however long that takes, then end it."""
        try:
            await self.uses.wait_until_unused()
        finally:
            await self.stop()

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's response. An error status raises EndpointError, a dead engine EngineError."""
        response = await self._request(path, body)
        if not response.ok:
            raise EndpointError(response)
        content: dict[str, Any] = await response.json()
        return content

    async def vocabulary_size(self) -> int:
        """The number of tokens in the vocabulary."""
        models = await self.call("/v1/models", {})
        size: int = models["data"][0]["meta"]["n_vocab"]
        return size

    async def _request(self, path: str, body: dict[str, Any]) -> ClientResponse:
        for _ in range(_TRIES):
            await self._running.wait()
            if self._end_reason is not None:
                raise EngineError("", self._end_reason)
            process = self._process
            url, method = process.address + path, "POST" if body else "GET"
            try:
                return await request(method, url, json=body or None, headers=process.headers)
            except _CONNECTION_ERRORS as error:
                if not await process.has_died():
                    raise EngineError("", f"the connection to the engine broke: {error!r}") from error
                if self._process is process and self._end_reason is None:
                    self._running.clear()  # _watch may not have noticed the death yet
        last_output = self._process.last_output()
        raise EngineError("", f"the engine died {_TRIES} times during this request. {last_output}")

    async def _watch(self) -> None:
        """Start the engine again each time it dies, up to the limit."""
        while True:
            code = await self._process.ended()
            self._running.clear()
            self.deaths += 1
            last_output = self._process.last_output()
            logger.warning("the engine died (exit code %s). %s", code, last_output)
            if not self._may_restart():
                self._give_up(f"the engine died too often, the last time with exit code {code}", last_output)
                return
            try:
                process = EngineProcess(self.settings)
                await process.start()
            except (ConfigError, OSError, ValueError) as error:
                self._give_up(f"the engine died and cannot be started again: {error}", last_output)
                return
            self._process = process
            self._running.set()
            logger.warning("the engine has been started again")

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._recent_deaths.append(now)
        while self._recent_deaths[0] < now - self.settings.restart_window_s:
            self._recent_deaths.popleft()
        return len(self._recent_deaths) <= self.settings.max_restarts

    def _give_up(self, reason: str, last_output: str) -> None:
        settings = self.settings
        self._end(
            f"{reason}; it is not restarted, because the limit is {settings.max_restarts} restarts in "
            f"{settings.restart_window_s:g} s (max_restarts, restart_window_s). {last_output}"
        )
        logger.error("%s", self._end_reason)

    def _end(self, reason: str) -> None:
        """Fail all callers that wait for the engine, now and later."""
        self._end_reason = self._end_reason or reason
        self._running.set()
