"""One engine process: started once, its log read, ended."""

import asyncio
import json
import secrets
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

from nemo_gym.environment_variables import child_environment
from nemo_gym.errors import ConfigError
from nemo_gym.local_engine.engine_settings import EngineSettings

_DEATH_CHECK_S = 2.0
"""How long to wait for the end of the process after a connection to it broke."""
_EXIT_S = 2.0
"""How long to wait for the process to exit before it is killed."""
_SHOWN_LINES = 8
_RUN_CHILD = (
    f"import runpy; runpy.run_path({str(Path(__file__).with_name('engine_main.py'))!r}, "
    "run_name='nemo_gym.local_engine.engine_main')['main']()"
)
"""Run as a file: importing the module would load its whole package, which takes longer than the weights."""


class EngineProcess:
    """Call `start`, then send requests to `address` with `headers`; always call `end`."""

    def __init__(self, settings: EngineSettings) -> None:
        self.address = ""
        self._settings = settings
        self._api_key = secrets.token_hex(16)
        self.headers = {"Authorization": f"Bearer {self._api_key}"}
        self._last_lines: deque[str] = deque(maxlen=20)
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start it and wait until it has loaded the weights; raises ConfigError if it cannot."""
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _RUN_CHILD),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C in the terminal goes to the owner only
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._log = asyncio.create_task(self._read_log(process.stderr))
        process.stdin.write(self._settings_line())
        try:
            await self._wait_loaded(process, process.stdout)
        except BaseException:
            await self.end()
            raise

    async def _wait_loaded(self, process: asyncio.subprocess.Process, output: asyncio.StreamReader) -> None:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.startup_s):
                line = await output.readline()
        except TimeoutError:
            raise ConfigError(
                f"the engine has not loaded {settings.model_path} within {settings.startup_s:g} s"
            ) from None
        message: dict[str, str] = json.loads(line) if line.strip() else {}
        if "address" not in message:
            code = await process.wait()
            await asyncio.wait({self._log} if self._log is not None else set(), timeout=1.0)
            reason = message.get("error", "").rstrip(".") or f"it ended with exit code {code}"
            raise ConfigError(f"the engine cannot run {settings.model_path}: {reason}. {self.last_output()}")
        self.address = message["address"]

    def _settings_line(self) -> bytes:
        settings = self._settings
        sent = {
            "model_path": str(settings.model_path),
            "chat_template": settings.chat_template,
            "slots": settings.slots,
            "context": settings.context,
            "threads": settings.threads,
            "prompt_threads": settings.prompt_threads,
            "api_key": self._api_key,
        }
        return json.dumps(sent).encode() + b"\n"

    async def ended(self) -> int:
        """Wait until it has ended; returns the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def has_died(self) -> bool:
        """Whether it has ended; to be called after a connection to it broke."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_CHECK_S):
                await self.ended()
        return self._process is not None and self._process.returncode is not None

    async def end(self) -> None:
        """Ask it to exit, and kill it if it does not."""
        process = self._process
        if process is not None and process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_S):
                    await process.wait()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._log is not None:
            self._log.cancel()

    def last_output(self) -> str:
        lines = [line for line in self._last_lines if line][-_SHOWN_LINES:]
        return "Its last output: " + " | ".join(lines) if lines else "It printed nothing."

    async def _read_log(self, log: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await log.readline()
            except ValueError:  # the line is too long; the rest of it is read as another line
                continue
            if not line:
                return
            self._last_lines.append(line.decode("utf-8", "replace").rstrip())
