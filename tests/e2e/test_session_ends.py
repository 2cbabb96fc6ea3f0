"""A session ends with its rollout: agents of both styles, embedded and served by `ng_run`."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import nemo_gym
from nemo_gym.activity import Activity, current_activity
from nemo_gym.server_utils import ServerClient
from scripts.scripted_endpoint import Output, ScriptedEndpoint, message, user_text
from tests.support.commands import ROOT, NgRun, wait_until
from tests.support.components import write_files

APP = """
from pathlib import Path

from fastapi import Request
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.server_utils import SESSION_ID_KEY


class RoomsConfig(BaseResourcesServerConfig):
    log: str


class RoomsServer(SimpleResourcesServer):
    config: RoomsConfig

    def write(self, event, session_id):
        with Path(self.config.log).open("a") as log:
            log.write(f"{event} {session_id}\\n")

    async def seed_session(self, request: Request):
        self.write("opened", request.session[SESSION_ID_KEY])
        return {}

    async def verify(self, body: dict):
        return {**body, "reward": 1.0}

    async def close_session(self, session_id: str):
        self.write("closed", session_id)
"""
CONFIG = """
rooms:
  resources_servers:
    rooms: {entrypoint: app.py, domain: other, num_workers: 2, log: "???"}
"""
AGENTS = """
%s_rooms:
  responses_api_agents:
    %s:
      entrypoint: app.py
      close_session_timeout_s: 30
      resources_server: {type: resources_servers, name: rooms}
      model_server: {type: responses_api_models, name: policy_model}
"""
CONFIGS = [
    "resources_servers/rooms/configs/rooms.yaml",
    "responses_api_models/openai_model/configs/openai_model.yaml",
]


async def respond(request: dict[str, Any]) -> Output:
    """What the user asks for: a refusal, a response that never comes, or a greeting."""
    if "refuse" in user_text(request):
        return web.json_response({"error": {"message": "no"}}, status=400)
    if "wait" in user_text(request):
        await asyncio.sleep(3600)
    return [message("hello")]


@dataclass
class World:
    """The same servers twice: described for embedding, and served."""

    settings: dict[str, str]
    served: NgRun
    logs: dict[str, Path]

    @asynccontextmanager
    async def open(self, hosting: str) -> AsyncIterator[ServerClient]:
        if hosting == "served":
            yield ServerClient.load_from_global_config(self.served.head)
        else:
            async with nemo_gym.open_servers(CONFIGS, self.settings) as client:
                yield client

    def sessions(self, hosting: str, event: str) -> list[str]:
        log = self.logs[hosting]
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split()[1] for line in lines if line.startswith(event)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("sessions")
    agents = "".join(AGENTS % (name, name) for name in ("simple_agent", "polite_agent"))
    write_files(folder / "resources_servers/rooms", {"app.py": APP, "configs/rooms.yaml": CONFIG + agents})
    logs = {hosting: folder / f"{hosting}.log" for hosting in ("embedded", "served")}
    with pytest.MonkeyPatch.context() as patch, ScriptedEndpoint(respond) as endpoint:
        patch.setenv("NEMO_GYM_EXTRA_ROOTS", f"{folder}:{ROOT / 'tests' / 'foreign'}")
        key = "rooms.resources_servers.rooms.log"
        with NgRun(CONFIGS, {**endpoint.settings, key: logs["served"]}) as served:
            yield World({**endpoint.settings, key: str(logs["embedded"])}, served, logs)


@pytest.mark.parametrize("agent", ["simple_agent", "polite_agent"])
@pytest.mark.parametrize("hosting", ["embedded", "served"])
@pytest.mark.parametrize(("task", "ok"), [("greet", True), ("refuse", False)])
def test_session_is_closed_when_its_run_has_ended(
    world: World, hosting: str, agent: str, task: str, ok: bool
) -> None:
    async def play() -> tuple[list[str], list[str]]:
        async with world.open(hosting) as client:
            row = {"responses_create_params": {"input": task}}
            response = await client.post(f"{agent}_rooms", "/run", json=row)
            assert response.ok is ok, await response.text()
            # Before the servers shut down, which closes what is open.
            return world.sessions(hosting, "opened"), world.sessions(hosting, "closed")

    opened, closed = asyncio.run(play())
    assert opened[-1] == closed[-1]
    assert len(opened) == len(set(opened)) == len(closed)


@pytest.mark.parametrize("agent", ["simple_agent", "polite_agent"])
@pytest.mark.parametrize("hosting", ["embedded", "served"])
def test_session_is_closed_when_its_run_reaches_its_deadline(world: World, hosting: str, agent: str) -> None:
    def are_all_closed() -> bool:
        return sorted(world.sessions(hosting, "opened")) == sorted(world.sessions(hosting, "closed"))

    async def play() -> None:
        async with world.open(hosting) as client:
            before = len(world.sessions(hosting, "opened"))
            limit_s = 0.5
            while len(world.sessions(hosting, "opened")) == before:  # later runs: if the machine is too slow
                current_activity.set(Activity("0:0", ends=time.monotonic() + limit_s))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        row = {"responses_create_params": {"input": "wait"}}
                        await client.post(f"{agent}_rooms", "/run", json=row)
                limit_s *= 2
            assert await asyncio.to_thread(wait_until, are_all_closed)

    asyncio.run(play())
    assert are_all_closed()
