"""`verify_in: thread`: a verifier that computes does not hold up other rollouts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.client import ServerClient
from nemo_gym.errors import ConfigError
from tests.support.components import write_files

APP = """
import asyncio, threading
from fastapi import Request
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.judge import JudgeError

OTHERS_ARE_DONE = threading.Event()


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/tool")(self.tool)
        return app

    async def tool(self, body: dict, request: Request) -> dict:
        request.session["tool"] = "used"
        if body.get("is_last"):
            OTHERS_ARE_DONE.set()
        return {}

    DEFINITION verify(self, body: dict, request: Request) -> dict:
        if body["task"] == "compute":
            while not OTHERS_ARE_DONE.is_set():
                pass
        elif body["task"] == "judge":
            raise JudgeError("no verdict")
        elif body["task"] == "exit":
            raise SystemExit("no licence")
        return {**body, "reward": 1.0, "session": request.session.get("tool")}
"""
CALLING = """
    async def verify(self, body: dict) -> dict:
        if body["task"] == "wait":
            await asyncio.sleep(3600)
        response = await self.server_client.post("env", "/tool", json={})
        return {"reward": float(response.ok), "thread": threading.current_thread().name}
"""
CONFIG = "env:\n  resources_servers:\n    env: {entrypoint: app.py, domain: other, verify_in: PLACE}\n"


def env(folder: Path, app: str, place: str = "thread") -> list[str]:
    files = {"app.py": app, "configs/env.yaml": CONFIG.replace("PLACE", place)}
    write_files(folder / "resources_servers" / "env", files)
    return ["resources_servers/env/configs/env.yaml"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def verified(client: ServerClient, task: str, **options: Any) -> dict[str, Any]:
    response = await client.post("env", "/verify", json={"task": task}, **options)
    result: dict[str, Any] = await response.json()
    return result


@pytest.mark.parametrize("definition", ["async def", "def"])
def test_other_rollouts_go_on_while_a_verifier_computes(folder: Path, definition: str) -> None:
    """The computation ends only when twenty calls to other routes have been served meanwhile."""
    paths = env(folder, APP.replace("DEFINITION", definition))

    async def run() -> dict[str, Any]:
        async with nemo_gym.open_servers(paths) as client, asyncio.timeout(60):
            computing = asyncio.create_task(verified(client, "compute"))
            for number in range(20):
                await (await client.post("env", "/tool", json={"is_last": number == 19})).read()
            return await computing

    assert asyncio.run(run())["reward"] == 1.0


@pytest.mark.parametrize("definition", ["async def", "def"])
def test_sessions_and_failures_are_those_of_the_event_loop(folder: Path, definition: str) -> None:
    paths = env(folder, APP.replace("DEFINITION", definition))

    async def run() -> None:
        async with nemo_gym.open_servers(paths) as client, asyncio.timeout(60):
            first = await client.post("env", "/tool", json={})
            assert (await verified(client, "x", cookies=first.cookies))["session"] == "used"
            assert (await verified(client, "judge"))["_ng_failure_class"] == "judge_failed"
            response = await client.post("env", "/verify", json={"task": "exit"})
            assert response.status == 500 and "no licence" in await response.text()

    asyncio.run(run())


def test_verifier_in_a_thread_may_call_other_servers_and_is_cancelled_with_its_caller(folder: Path) -> None:
    paths = env(folder, APP.replace("DEFINITION", "async def") + CALLING)

    async def run() -> None:
        async with nemo_gym.open_servers(paths, {"env.resources_servers.env.verify_workers": 1}) as client:
            async with asyncio.timeout(60):
                with pytest.raises(Exception, match="no response to POST /verify within"):
                    await verified(client, "wait", timeout=0.2)
                result = await verified(client, "x")  # the only thread is free again
                assert result["reward"] == 1.0 and result["thread"].startswith("verify env")

    asyncio.run(run())


def test_unknown_place_is_refused(folder: Path) -> None:
    async def run() -> None:
        async with nemo_gym.open_servers(env(folder, APP.replace("DEFINITION", "def"), "cloud")):
            pass

    with pytest.raises(ConfigError, match="verify_in"):
        asyncio.run(run())
