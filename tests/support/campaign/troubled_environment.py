"""An environment whose verifier misbehaves once for every trouble that is planted."""

from pathlib import Path

from tests.support.components import write_files

TROUBLES = ("block", "cancel_all", "exit", "fork", "interrupt", "nan", "raise", "stop_loop")

APP = """
import asyncio, os, time
from contextlib import suppress
from pathlib import Path
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer


class TroubledConfig(BaseResourcesServerConfig):
    troubles: str


class Server(SimpleResourcesServer):
    config: TroubledConfig

    async def verify(self, body: dict) -> dict:
        trouble = self.claimed(int(body["expected_answer"]) - 1)
        if trouble is not None:
            await getattr(self, trouble)()
        return {**body, "reward": float("nan") if trouble == "nan" else 1.0}

    def claimed(self, number):
        for path in Path(self.config.troubles).glob(f"{number}.*"):
            with suppress(FileNotFoundError):
                path.unlink()
                return path.suffix[1:]

    async def nan(self): ...

    async def exit(self):
        os._exit(9)

    async def interrupt(self):
        raise KeyboardInterrupt

    async def stop_loop(self):
        asyncio.get_running_loop().stop()

    async def cancel_all(self):
        for task in asyncio.all_tasks():
            task.cancel()

    async def fork(self):
        os.fork()  # the child returns into the event loop, too

    async def block(self):
        time.sleep(0.5)

    async def raise_(self):
        raise RuntimeError("planted")


setattr(Server, "raise", Server.raise_)

if __name__ == "__main__":
    Server.run_webserver()
"""

CONFIG = """
troubled:
  resources_servers:
    troubled: {{entrypoint: app.py, domain: other, troubles: {troubles}}}
troubled_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: troubled}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""
CONFIG_PATH = "resources_servers/troubled/configs/troubled.yaml"
AGENT = "troubled_agent"


class Troubles:
    """What the environment in a folder will do, by the number of the rollout. Each happens once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "troubles"
        self._folder.mkdir()
        text = CONFIG.format(troubles=self._folder)
        component = folder / "resources_servers" / "troubled"
        write_files(component, {"app.py": APP, "configs/troubled.yaml": text})

    def plant(self, number: int, trouble: str) -> None:
        (self._folder / f"{number}.{trouble}").touch()

    def clear(self) -> list[str]:
        """Remove the troubles that have not happened; returns them."""
        left = list(self._folder.iterdir())
        for path in left:
            path.unlink(missing_ok=True)
        return [path.suffix[1:] for path in left]
