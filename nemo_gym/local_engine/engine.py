"""The engine's process as its owner sees it: started, asked, started again when it dies, stopped.

Invariant: when `stop` is over, or the process that owns the engine is, the engine's process is gone too.
"""

import asyncio
import json
import logging
import secrets
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

import aiohttp

from nemo_gym.errors import ConfigError
from nemo_gym.http import ClientResponse, EndpointError, ServerUnreachableError, request
from nemo_gym.local_engine.settings import EngineSettings

logger = logging.getLogger(__name__)

_TRIES = 2
"""Of a call during which the engine dies: the first may have been another one's fault."""
_NOTICED_S = 2.0
"""Within which the end of a process whose connection broke is noticed."""
_ENDED_S = 2.0
"""For a process that was told to leave."""
_NO_ANSWER = (aiohttp.ClientError, OSError)


class EngineError(ServerUnreachableError):
    """The engine is not there, or died while it was asked."""


class LocalEngine:
    """`start`, then `ask`, in the end `stop`."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.slots = asyncio.Semaphore(settings.slots)
        """To be held while the engine generates."""
        self.deaths = 0
        self.token_bytes: dict[int, bytes] = {}
        """What each token stands for; filled when it is first needed."""
        self._recent_deaths: deque[float] = deque()
        self._last_lines: deque[str] = deque(maxlen=20)
        self._api_key = secrets.token_hex(16)
        self._headers = {"Authorization": f"Bearer {self._api_key}"}
        self._process: asyncio.subprocess.Process | None = None
        self._address = ""
        self._running = asyncio.Event()
        """Whether there is one to ask; also set when there never will be again."""
        self._given_up: str | None = None
        self._is_stopping = False
        self._asking = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process and wait until it has loaded the weights."""
        await self._start()
        self._keep(self._watch())

    async def stop(self, drain_s: float) -> None:
        """Let generations that run end for so long, then end the process."""
        self._is_stopping = True
        if self._running.is_set() and self._given_up is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._idle.wait()
        await self._end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's answer; its refusal is an EndpointError, its death an EngineError."""
        response = await self._ask(path, body)
        if not response.ok:
            raise EndpointError(response)
        answer: dict[str, Any] = await response.json()
        return answer

    async def _ask(self, path: str, body: dict[str, Any]) -> ClientResponse:
        self._asking += 1
        self._idle.clear()
        try:
            for _ in range(_TRIES):
                process = await self._alive()
                try:
                    url, method = self._address + path, "POST" if body else "GET"
                    return await request(method, url, json=body or None, headers=self._headers)
                except _NO_ANSWER as error:
                    if not await self._has_died(process):
                        raise EngineError("", f"the engine broke off: {error!r}") from error
            raise EngineError("", f"the engine died {_TRIES} times at this request. {self._last_words()}")
        finally:
            self._asking -= 1
            if not self._asking:
                self._idle.set()

    async def _alive(self) -> asyncio.subprocess.Process:
        """The process, as soon as there is one."""
        if self._is_stopping:
            raise EngineError("", "the engine is being stopped")
        await self._running.wait()
        if self._given_up is not None:
            raise EngineError("", self._given_up)
        assert self._process is not None
        return self._process

    async def _has_died(self, process: asyncio.subprocess.Process) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTICED_S):
                await process.wait()
        return process.returncode is not None and not self._is_stopping

    async def _start(self) -> None:
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", "from nemo_gym.local_engine.child import main; main()"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is its owner's business
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._keep(self._read_log(process.stderr))
        process.stdin.write(self._told())
        try:
            async with asyncio.timeout(self.settings.startup_s):
                line = await process.stdout.readline()
        except TimeoutError:
            await self._end()
            raise ConfigError(
                f"the engine has not loaded {self.settings.model_path} in {self.settings.startup_s:g} s"
            ) from None
        except asyncio.CancelledError:
            await self._end()
            raise
        answer: dict[str, str] = json.loads(line) if line.strip() else {}
        if "address" not in answer:
            await self._end()
            reason = answer.get("error") or f"it ended with exit code {process.returncode}"
            raise ConfigError(
                f"the engine cannot run {self.settings.model_path}: {reason}. {self._last_words()}"
            )
        self._address = answer["address"]
        self._running.set()

    def _told(self) -> bytes:
        settings = self.settings
        told = {
            "model_path": str(settings.model_path),
            "chat_template": settings.chat_template,
            "slots": settings.slots,
            "context": settings.context,
            "threads": settings.threads,
            "api_key": self._api_key,
        }
        return json.dumps(told).encode() + b"\n"

    async def _watch(self) -> None:
        """Start the engine again each time it dies, within its budget."""
        while self._given_up is None:
            assert self._process is not None
            code = await self._process.wait()
            if self._is_stopping:
                return
            self._running.clear()
            self.deaths += 1
            logger.warning("the engine died (exit code %s). %s", code, self._last_words())
            if not self._may_restart():
                self._give_up(f"the engine died too often, the last time with exit code {code}")
                return
            try:
                await self._start()
                logger.warning("the engine runs again")
            except ConfigError as error:
                self._give_up(str(error))

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._recent_deaths.append(now)
        while self._recent_deaths[0] < now - self.settings.restart_window_s:
            self._recent_deaths.popleft()
        return len(self._recent_deaths) <= self.settings.max_restarts

    def _give_up(self, reason: str) -> None:
        settings = self.settings
        self._given_up = (
            f"{reason}; it was started again at most {settings.max_restarts} times in "
            f"{settings.restart_window_s:g} s (max_restarts, restart_window_s). {self._last_words()}"
        )
        logger.error("%s", self._given_up)
        self._running.set()

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_S):
                await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _read_log(self, log: asyncio.StreamReader) -> None:
        with suppress(ValueError):  # a line longer than any log's
            while line := await log.readline():
                self._last_lines.append(line.decode("utf-8", "replace").rstrip())

    def _last_words(self) -> str:
        lines = [line for line in self._last_lines if line]
        return "It said: " + " | ".join(lines[-5:]) if lines else "It said nothing."

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
