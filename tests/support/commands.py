"""Runs the commands as processes."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def run_command(
    *arguments: str, cwd: Path | str = ROOT, env: Mapping[str, str] | None = None, timeout_s: float = 180
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [str(BIN / arguments[0]), *arguments[1:]]
    full_env = {**os.environ, **(env or {})}
    return subprocess.run(
        command, cwd=cwd, env=full_env, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not been waited for."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listing.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def descendants_of(pid: int) -> list[int]:
    children = children_of(pid)
    return [*children, *(below for child in children for below in descendants_of(child))]


def processes_in(folder: Path) -> list[int]:
    """The processes with this working directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(entry / "cwd")) == folder:
                found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; an ended process that was not waited for is a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between open and read
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Whether the condition becomes true; False after `timeout_s`, when the test hangs."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


class NgRun:
    """`ng_run` as a process; entering it waits until all servers are ready."""

    def __init__(
        self,
        config_paths: list[str],
        settings: Mapping[str, object],
        cwd: Path = ROOT,
        wait: bool = True,
        soft_file_limit: int | None = None,
    ) -> None:
        self.head = BaseServerConfig(host="127.0.0.1", port=free_port())
        overrides = [f"+{key}={value}" for key, value in settings.items()]
        self._wait = wait
        self._lines: list[str] = []
        limit = ["prlimit", f"--nofile={soft_file_limit}:"] if soft_file_limit else []
        self.process = subprocess.Popen(
            [
                *limit,
                str(BIN / "ng_run"),
                f"+config_paths=[{','.join(config_paths)}]",
                f"+head_server.port={self.head.port}",
                *overrides,
            ],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C stops the tests, which then stop it
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

    def lines_of(self, server: str) -> list[str]:
        """The lines that the server has written so far."""
        prefix = f"[{server}] "
        return [line.removeprefix(prefix).rstrip("\n") for line in self._lines if line.startswith(prefix)]

    def fetch(self, path: str) -> bytes:
        """The body of a GET request to the head server."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.head.port}{path}", timeout=60) as response:
            page: bytes = response.read()
            return page

    def post(self, server: str, path: str, json: object = None, **options: Any) -> Any:
        """The decoded response of a server to a POST request."""

        async def call() -> Any:
            client = ServerClient.load_from_global_config(self.head)
            response = await client.post(server, path, json=json if json is not None else {}, **options)
            assert response.status == 200, await response.text()
            return await response.json()

        return asyncio.run(call())

    def pid_of(self, server: str) -> int:
        found = re.search(rf"^{re.escape(server)} .* (\d+)\s+\d+$", self.output, re.M)
        assert found, self.output
        return int(found[1])

    def wait_ready(self) -> None:
        ready = wait_until(
            lambda: "All servers are ready" in self.output or self.process.poll() is not None, 180
        )
        assert ready and self.process.poll() is None, self.output

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code, after the process has ended and all its output has been read."""
        code = self.process.wait(90)
        self._reader.join(30)
        return code

    def close(self) -> None:
        """Stop it and release what it holds in this process."""
        self.stop()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> "NgRun":
        if self._wait:
            self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
