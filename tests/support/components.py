"""Writes component folders like those of a user."""

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
        return {"result": RESULT}

    async def verify(self, body):
        return {"reward": 1.0}


RESULT = "plain"
"""
"""An environment with one route, /ask, that returns RESULT; text appended to it can change RESULT."""


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")


def write_component(root: Path, name: str, app: str = SERVER, files: dict[str, str] | None = None) -> str:
    """Write a resources server under `root`; returns the path of its configuration, relative to `root`."""
    folder = root / "resources_servers" / name
    config = f"{name}:\n  resources_servers:\n    {name}: {{entrypoint: app.py, domain: other}}\n"
    write_files(folder, {"app.py": app, f"configs/{name}.yaml": config, **(files or {})})
    return f"resources_servers/{name}/configs/{name}.yaml"
