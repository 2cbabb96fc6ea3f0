"""The head server: tells everyone what servers there are and where. It never tells a secret."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
import yaml
from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.client import base_url
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import PortInUseError
from nemo_gym.servers.serve import listen


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
        return yaml.safe_dump(self.masked_config, sort_keys=False, allow_unicode=True)

    async def server_instances(self) -> list[ServerStatus]:
        return self.statuses()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever runs the event loop."""
        yield


@asynccontextmanager
async def serve_head(head: HeadServer) -> AsyncIterator[None]:
    """The head server answers while the context is open."""
    host, port = head.config.host, head.config.port
    try:
        listener = listen(host, port)
    except OSError as error:
        raise PortInUseError(
            f"the head server cannot listen on {host}:{port}: {error.strerror}; is another ng_run up? "
            "Stop it, or set another port with +head_server.port=<port>"
        ) from error
    server = _Server(
        uvicorn.Config(
            head.setup_webserver(), log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
    )
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listener.close()
