"""One server process as its parent sees it: started, listened to, stopped."""

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from nemo_gym.codec import decode_json
from nemo_gym.config import GymConfig, ServerInstance, dump_config, redact
from nemo_gym.errors import HostingError, PortInUseError, ServerDiedError, ServerNotReadyError
from nemo_gym.launch.child import GRACE_S

LogLine = Callable[[str, str], None]
"""Takes a server's name and one line that it wrote."""

_CHUNK = 65_536


@dataclass
class ServerProcess:
    """A worker of a server. `start`, then `stop`; `ended` gives its exit code when it is over."""

    config: GymConfig
    instance: ServerInstance
    port: int
    worker: int | None
    on_line: LogLine
    status: Literal["starting", "ready", "stopped", "died"] = "starting"
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    restarts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _pump: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.instance.name if self.worker is None else f"{self.instance.name}[{self.worker}]"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self, timeout_s: float) -> None:
        """Start the process and wait until it accepts requests."""
        self.status = "starting"
        status_read, status_write = os.pipe()
        listener = bind(self.instance, self.port)
        try:
            self._process = await self._spawn(listener.fileno(), status_write)
        finally:
            # Only the child listens: when it dies, callers are refused instead of left waiting.
            listener.close()
            os.close(status_write)
        self._pump = asyncio.create_task(self._read_lines(self._process))
        await self._send_config(self._process)
        await self._wait_ready(status_read, timeout_s)
        self.status = "ready"

    async def _spawn(self, listener_fd: int, status_fd: int) -> asyncio.subprocess.Process:
        options = [
            f"--instance={self.instance.name}",
            f"--listener-fd={listener_fd}",
            f"--status-fd={status_fd}",
        ]
        if self.worker is not None:
            options.append(f"--worker={self.worker}")
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-m", "nemo_gym.launch.child", *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(listener_fd, status_fd),
            start_new_session=True,  # Ctrl-C in the terminal reaches the parent alone
        )

    async def _send_config(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):  # a process that is gone already is reported by its exit code
            process.stdin.write(dump_config(self.config) + b"\n")
            await process.stdin.drain()

    async def _wait_ready(self, status_fd: int, timeout_s: float) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(status_fd, "rb")
        )
        try:
            line = await asyncio.wait_for(reader.readline(), timeout_s)
        except TimeoutError:
            raise ServerNotReadyError(
                f"{self.name} is not ready after {timeout_s:g} s; its last lines:\n{self.tail()}\n"
                "Mend its start-up, or allow more time with +startup_timeout_s=<seconds>"
            ) from None
        finally:
            transport.close()
        message = decode_json(line) if line else {}
        if "error" in message:
            raise HostingError(message["error"])
        if "ready" not in message:
            await self.ended()
            raise ServerDiedError(self.obituary())

    async def ended(self) -> int:
        """Wait for the process to end and for its last line; gives the exit code."""
        assert self._process is not None and self._pump is not None
        code = await self._process.wait()
        with suppress(TimeoutError):  # a grandchild may hold the pipe open
            await asyncio.wait_for(asyncio.shield(self._pump), 1.0)
        if self.status != "stopped":
            self.status = "died"
        return code

    def obituary(self) -> str:
        """What to tell of a process that died."""
        code = self._process.returncode if self._process is not None else None
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {signal.Signals(-code).name}"
        return f"{self.name} died ({how}); its last lines:\n{self.tail()}"

    def tail(self) -> str:
        return "\n".join(f"  {line}" for line in self.last_lines) or "  (it wrote nothing)"

    async def stop(self) -> None:
        """End the process and everything it started: asked first, then made to."""
        if self._process is None:
            return
        self.status = "stopped"
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), GRACE_S + 2)
        self.kill()
        await self.ended()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._pump is not None:
            self._pump.cancel()

    def kill(self) -> None:
        """End what is left of the process and its descendants at once."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _read_lines(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _CHUNK:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take_line(line)
        if rest:
            self._take_line(rest)

    def _take_line(self, line: bytes) -> None:
        text = redact(line.decode("utf-8", "replace").rstrip(), self.config.secrets)
        self.last_lines.append(text)
        self.on_line(self.name, text)


def bind(instance: ServerInstance, port: int) -> socket.socket:
    """A listening socket for a server, made before its process so that a taken port is known at once."""
    try:
        return socket.create_server((instance.host, port), backlog=8192)
    except OSError as error:
        raise PortInUseError(
            f"{instance.name} cannot listen on {instance.host}:{port}: {error.strerror}; stop whoever does, "
            f"or set another port with +{instance.name}.{instance.kind}.{instance.implementation}.port=<port>"
        ) from error
