"""Component folders written on the spot: what a user's own folder looks like."""

from pathlib import Path
from textwrap import dedent

SERVER = """
from fastapi import Request
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/ask")(self.ask)
        return app

    async def ask(self, body: dict) -> dict:
        return {"answer": ANSWER}

    async def verify(self, body):
        return {"reward": 1.0}


ANSWER = "plain"
"""
"""An environment with one route, /ask, that gives ANSWER; text after it may set that name anew."""


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")


def write_component(root: Path, name: str, app: str = SERVER, files: dict[str, str] | None = None) -> str:
    """A resources server `name` under `root`; gives the path of its configuration, relative to the root."""
    folder = root / "resources_servers" / name
    config = f"{name}:\n  resources_servers:\n    {name}: {{entrypoint: app.py, domain: other}}\n"
    write_files(folder, {"app.py": app, f"configs/{name}.yaml": config, **(files or {})})
    return f"resources_servers/{name}/configs/{name}.yaml"
