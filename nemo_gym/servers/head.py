"""The head server: lists the servers with their addresses and the configuration, without secrets."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.client import base_url
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.head_page import config_text


class ServerStatus(BaseModel):
    """One server process."""

    name: str
    kind: str
    implementation: str
    host: str
    port: int
    pid: int | None
    status: str
    restarts: int = 0

    @property
    def url(self) -> str:
        return base_url(self.host, self.port)


class HeadServer(BaseModel):
    """Serves the masked configuration and the state of the servers."""

    config: BaseServerConfig
    masked_config: dict[str, Any]
    statuses: Callable[[], list[ServerStatus]]

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        app.get("/")(self.alive)
        app.get("/global_config_dict_yaml")(self.global_config_dict_yaml)
        app.get("/server_instances")(self.server_instances)
        return app

    async def alive(self) -> dict[str, str]:
        return {"status": "ok"}

    async def global_config_dict_yaml(self) -> str:
        return config_text(self.masked_config)

    async def server_instances(self) -> list[ServerStatus]:
        return self.statuses()
