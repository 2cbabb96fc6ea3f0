"""A well-behaved environment in which code of a test can misbehave."""

from tests.support.collecting import MODEL, CollectionRuns
from tests.support.components import write_files

APP = """
import asyncio, sys, time
from contextlib import asynccontextmanager
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/stall")(self.stall)
        app.router.lifespan_context = self.lifespan
        return app

    @asynccontextmanager
    async def lifespan(self, app):
        await self.start()
        yield
        await self.end()

    async def start(self): ...

    async def end(self): ...

    async def stall(self, body: dict) -> dict:
        await asyncio.Event().wait()

    async def verify(self, body: dict) -> dict:
        if body["expected_answer"] == "4":
            await self.misbehave()
        return {**body, "reward": 1.0}

    async def misbehave(self): ...


async def never_end():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""
"""A well-behaved environment; code appended to it may replace a method. Rollout 3 is the one that
misbehaves."""

CONFIG = """
unruly:
  resources_servers:
    unruly: {entrypoint: app.py, domain: other}
unruly_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: unruly}
      model_server: {type: responses_api_models, name: policy_model}
"""


def unruly(runs: CollectionRuns, code: str = "", below: str = ".", rollouts: int = 12) -> CollectionRuns:
    """The same rollouts in an environment with this code appended."""
    folder = runs.folder / below
    files = {"app.py": APP + code, "configs/unruly.yaml": CONFIG}
    write_files(folder / "resources_servers" / "unruly", files)
    paths = ("resources_servers/unruly/configs/unruly.yaml", MODEL)
    return CollectionRuns(
        folder, runs.endpoint, runs.adder, rollouts, config_paths=paths, agent="unruly_agent"
    )
