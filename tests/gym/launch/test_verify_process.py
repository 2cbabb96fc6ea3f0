"""`verify_in: process`: `verify` runs in processes that host the environment once more."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.client import ServerClient
from nemo_gym.errors import ConfigError
from tests.support.commands import is_running, wait_until
from tests.support.components import write_files

APP = """
import asyncio, os, sys, time
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.judge import JudgeError


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    DEFINITION verify(self, body: dict) -> dict:
        if body["task"] == "compute":
            with open(body["pid_file"], "w") as file:
                file.write(str(os.getpid()))
            while True:
                pass
        elif body["task"] == "judge":
            raise JudgeError("no verdict")
        elif body["task"] == "bug":
            raise ValueError("a bug")
        elif body["task"] == "die":
            os._exit(9)
        return {**body, "reward": 1.0, "pid": os.getpid()}
"""
REQUEST = """
    async def verify(self, body: dict, request: Request) -> dict:
        return {"reward": 1.0}
"""
CALLING = """
    async def verify(self, body: dict) -> dict:
        await self.server_client.post("env", "/tool", json={})
"""
CONFIG = """
env:
  resources_servers:
    env: {entrypoint: app.py, domain: other, verify_in: process, verify_workers: 1}
"""


def env(folder: Path, more: str = "", definition: str = "async def") -> list[str]:
    app = "from fastapi import Request\n" + APP.replace("DEFINITION", definition) + more
    write_files(folder / "resources_servers" / "env", {"app.py": app, "configs/env.yaml": CONFIG})
    return ["resources_servers/env/configs/env.yaml"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def verify(client: ServerClient, task: str, **row: Any) -> tuple[int, Any]:
    response = await client.post("env", "/verify", json={"task": task, **row})
    return response.status, await response.json()


@pytest.mark.parametrize("definition", ["async def", "def"])
def test_verifier_in_a_process_gives_the_same_responses(folder: Path, definition: str) -> None:
    paths = env(folder, definition=definition)

    async def run() -> None:
        async with nemo_gym.open_servers(paths) as client, asyncio.timeout(120):
            status, result = await verify(client, "score", text="é")
            assert status == 200 and result["reward"] == 1.0 and result["text"] == "é"
            assert result["pid"] != os.getpid()
            assert (await verify(client, "score"))[1]["pid"] == result["pid"], "the process stays"
            assert (await verify(client, "judge"))[1]["_ng_failure_class"] == "judge_failed"
            response = await client.post("env", "/verify", json={"task": "bug"})
            assert response.status == 500 and response.headers["x-nemo-gym-failure-kind"] == "data"
            assert "a bug" in await response.text()
        assert wait_until(lambda: not is_running(result["pid"]))

    asyncio.run(run())


def test_process_that_dies_or_computes_beyond_a_deadline_is_replaced(folder: Path) -> None:
    paths = env(folder)

    async def run() -> None:
        async with nemo_gym.open_servers(paths) as client, asyncio.timeout(120):
            response = await client.post("env", "/verify", json={"task": "die"})
            assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
            file = folder / "pid"
            row = {"task": "compute", "pid_file": str(file)}
            computing = asyncio.create_task(client.post("env", "/verify", json=row))
            assert await asyncio.to_thread(wait_until, lambda: file.exists() and file.read_text())
            computing.cancel()
            assert await asyncio.to_thread(wait_until, lambda: not is_running(int(file.read_text())))
            assert (await verify(client, "score"))[0] == 200

    asyncio.run(run())


def test_verify_that_takes_a_request_is_refused(folder: Path) -> None:
    async def run() -> None:
        async with nemo_gym.open_servers(env(folder, REQUEST)):
            pass

    with pytest.raises(ConfigError, match=r"`verify` takes a Request, .* use verify_in: thread"):
        asyncio.run(run())


def test_verify_that_calls_another_server_fails_with_a_hint(folder: Path) -> None:
    async def run() -> None:
        async with nemo_gym.open_servers(env(folder, CALLING)) as client, asyncio.timeout(120):
            status, error = await verify(client, "score")
            assert status == 500 and "`verify` cannot call env; use verify_in: thread" in error

    asyncio.run(run())
