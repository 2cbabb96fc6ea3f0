"""Real commands in real processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from nemo_gym.config_types import BaseServerConfig

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def run_command(
    *arguments: str, cwd: Path | str = ROOT, env: Mapping[str, str] | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [str(BIN / arguments[0]), *arguments[1:]]
    full_env = {**os.environ, **(env or {})}
    return subprocess.run(
        command, cwd=cwd, env=full_env, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listing.stdout.split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


class NgRun:
    """`ng_run` in a process of its own; entering waits until it says that all servers are ready."""

    def __init__(
        self, config_paths: list[str], settings: Mapping[str, object], cwd: Path = ROOT, wait: bool = True
    ) -> None:
        self.head = BaseServerConfig(host="127.0.0.1", port=free_port())
        overrides = [f"+{key}={value}" for key, value in settings.items()]
        self._wait = wait
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [
                str(BIN / "ng_run"),
                f"+config_paths=[{','.join(config_paths)}]",
                f"+head_server.port={self.head.port}",
                *overrides,
            ],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def pid_of(self, server: str) -> int:
        found = re.search(rf"^{re.escape(server)} .* (\d+)\s+\d+$", self.output, re.M)
        assert found, self.output
        return int(found[1])

    def wait_ready(self) -> None:
        ready = wait_until(
            lambda: "All servers are ready" in self.output or self.process.poll() is not None, 90
        )
        assert ready and self.process.poll() is None, self.output

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(5)
        return code

    def __enter__(self) -> "NgRun":
        if self._wait:
            self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self.process.stdout is not None
        self.process.stdout.close()
