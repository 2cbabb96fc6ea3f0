"""Publishes runs in a separate process, so that the test process does not load the tracker libraries."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import HTTPServer
from pathlib import Path
from typing import Any

from tests.support.commands import ROOT

API_KEY = "0123456789abcdef0123456789abcdef01234567"
ROLLOUTS = ['{"_ng_task_index": 0, "reward": 1.0, "text": "é ☃"}', '{"_ng_task_index": 1, "reward": 0.0}']
REMEDY = "; the output files are complete; send them again with ng_aggregate_rollouts"


@dataclass(frozen=True)
class Published:
    """The results and the output of a process that published runs."""

    results: list[dict[str, Any]]
    """One per publication."""
    stdout: str
    stderr: str

    @property
    def result(self) -> dict[str, Any]:
        (only,) = self.results
        return only


def publish_in_process(
    folder: Path, *publications: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> Published:
    """Publish in a process whose command line has all settings, API keys included, as a user's may have."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    full_env = {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "DO_NOT_TRACK": "true", **(env or {})}
    program = Path(__file__).with_name("publisher.py")
    process = subprocess.run(
        [sys.executable, str(program), json.dumps(publications), str(results)],
        cwd=folder,
        env=full_env,
        capture_output=True,
        text=True,
        timeout=90,  # shorter than the default time limit: a publication that hangs fails the test
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(results.read_text())
    return Published(found, process.stdout, process.stderr)


def files_with(folder: Path, text: str) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


@contextmanager
def serving(server: HTTPServer) -> Iterator[None]:
    """Run a server in a thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent_server() -> Iterator[str]:
    """The address of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def refused_address() -> Iterator[str]:
    """An address that refuses connections, reserved so that no other process can use it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"
