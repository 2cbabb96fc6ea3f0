"""A server process, seen from its parent: start it, read its output, stop it.

The pipes are created here and not by asyncio. Children of the server inherit their other ends, and asyncio
would report the end of the server only when these children have ended too.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Literal, NamedTuple

from nemo_gym.codec import decode_json
from nemo_gym.config import GymConfig, ServerInstance, dump_config
from nemo_gym.environment_variables import child_environment
from nemo_gym.errors import ComponentError, PortInUseError, ServerDiedError, ServerNotReadyError
from nemo_gym.launch.logs import take_lines
from nemo_gym.servers.serve import GRACE_S, listen

LogLine = Callable[[str, str], None]
"""Called with a server's name and one line that it wrote."""

_PORT_FREED_S = 5.0
"""How long the port of a killed process may stay in use."""

_EXITS_OF_SIGTERM = (0, -signal.SIGTERM)


class _Pipe(NamedTuple):
    read: IO[bytes]
    write: IO[bytes]


@dataclass
class ServerProcess:
    """A worker of a server: `start`, then `stop`. `ended` waits for its exit code."""

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
    _lifeline: asyncio.WriteTransport | None = None
    """Its standard input: the configuration, then nothing; it closes when this process ends."""

    @property
    def name(self) -> str:
        return self.instance.name if self.worker is None else f"{self.instance.name}[{self.worker}]"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self, timeout_s: float) -> None:
        """Start the process and wait until it accepts requests."""
        await self._start(bind(self.instance, self.port), timeout_s)

    async def restart(self, timeout_s: float) -> None:
        """Start it again at the same address, after it has ended."""
        self.restarts += 1
        self.kill()
        self._close_pipes()
        await self._start(await self._bind_again(), timeout_s)

    async def _start(self, listener: socket.socket, timeout_s: float) -> None:
        self.status = "starting"
        status, config, output = _pipe(), _pipe(), _pipe()
        with ExitStack() as ours:
            for end in (status.read, config.write, output.read):
                ours.enter_context(end)
            # Only the child keeps the socket: when it dies, callers are refused and do not wait.
            with listener, status.write, config.read, output.write:
                self._process = await self._spawn(listener, status.write, config.read, output.write)
            ours.pop_all()
        self._pump = asyncio.create_task(take_lines(output.read, self.config.secrets, self._take))
        loop = asyncio.get_running_loop()
        self._lifeline, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, config.write)
        self._lifeline.write(dump_config(self.config) + b"\n")
        await self._wait_ready(status.read, timeout_s)
        self.status = "ready"

    async def _spawn(
        self, listener: socket.socket, status: IO[bytes], config: IO[bytes], output: IO[bytes]
    ) -> asyncio.subprocess.Process:
        options = [
            f"--instance={self.instance.name}",
            f"--listener-fd={listener.fileno()}",
            f"--status-fd={status.fileno()}",
        ]
        if self.worker is not None:
            options.append(f"--worker={self.worker}")
        return await asyncio.create_subprocess_exec(
            # -P: do not import modules from the working directory, as in this process.
            *(sys.executable, "-u", "-P", "-m", "nemo_gym.launch.server_main", *options),
            stdin=config,
            stdout=output,
            stderr=output,
            pass_fds=(listener.fileno(), status.fileno()),
            env=child_environment(self.config.roots),  # absolute: the child changes its directory
            start_new_session=True,  # Ctrl-C in the terminal reaches only the parent
        )

    async def _bind_again(self) -> socket.socket:
        deadline = time.monotonic() + _PORT_FREED_S
        while True:
            try:
                return bind(self.instance, self.port)
            except PortInUseError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.05)

    async def _wait_ready(self, status: IO[bytes], timeout_s: float) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), status
        )
        ending = asyncio.create_task(self.ended())
        reporting = asyncio.create_task(reader.readline())
        try:
            done, _ = await asyncio.wait(
                {reporting, ending}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if (
                reporting in done and not reporting.result()
            ):  # the pipe is closed: the process ends, or never reports
                done, _ = await asyncio.wait({ending}, timeout=timeout_s)
            line = reporting.result() if reporting in done else b""
        finally:
            reporting.cancel()
            ending.cancel()
            transport.close()
        if not done:
            raise ServerNotReadyError(
                f"{self.name} is not ready after {timeout_s:g} s; its last lines:\n{self.tail()}\n"
                "Fix its start-up, or allow more time with +startup_timeout_s=<seconds>"
            )
        message = decode_json(line) if line else {}
        if "error" in message:
            raise ComponentError(message["error"])
        if "ready" not in message:
            await self.ended()
            raise ServerDiedError(self.death_message())

    async def ended(self) -> int:
        """Wait for the process to end and for its last line; returns the exit code."""
        assert self._process is not None and self._pump is not None
        code = await self._process.wait()
        # Its children may keep the pipe open.
        await asyncio.wait({self._pump}, timeout=1.0)
        if self.status != "stopped":
            self.status = "died"
        return code

    def death_message(self) -> str:
        """The message about a process that died."""
        code = self._process.returncode if self._process is not None else None
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {signal.Signals(-code).name}"
        return f"{self.name} died ({how}); its last lines:\n{self.tail()}"

    def tail(self) -> str:
        return "\n".join(f"  {line}" for line in self.last_lines) or "  (it wrote nothing)"

    async def stop(self) -> None:
        """Stop the process and its children: first with SIGTERM, then with SIGKILL."""
        if self._process is None:
            return
        self.status = "stopped"
        was_killed = False
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                # Not `terminate`: it would take the exit code of a dead process from the event loop.
                os.kill(self._process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), GRACE_S + 2)
            except TimeoutError:
                was_killed = True
        self.kill()
        if await self.ended() not in _EXITS_OF_SIGTERM and not was_killed:
            self.status = "died"  # before SIGTERM, but not noticed yet
        self._close_pipes()

    def kill(self) -> None:
        """Kill the process group immediately."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _close_pipes(self) -> None:
        """Close the pipes to a process that has ended."""
        if self._lifeline is not None and not self._lifeline.is_closing():
            self._lifeline.abort()
        if self._pump is not None:
            self._pump.cancel()

    def _take(self, line: str) -> None:
        self.last_lines.append(line)
        self.on_line(self.name, line)


def bind(instance: ServerInstance, port: int) -> socket.socket:
    """A listening socket for a server, created before its process, to detect a port in use early."""
    try:
        return listen(instance.host, port)
    except OSError as error:
        raise PortInUseError(
            f"{instance.name} cannot listen on {instance.host}:{port}: {error.strerror}; stop the program "
            f"that uses it, or set another port with +{instance.path}.port=<port>"
        ) from error


def _pipe() -> _Pipe:
    read, write = os.pipe()
    return _Pipe(os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0))
