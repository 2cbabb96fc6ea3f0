"""Small servers of the three kinds, hosted together in this process."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.client import ServerClient
from nemo_gym.server_utils import SimpleServer
from nemo_gym.servers.hosted import HostedServer

CONFIGS: dict[type[SimpleServer], type[Any]] = {
    SimpleResourcesServer: BaseResourcesServerConfig,
    SimpleResponsesAPIAgent: BaseResponsesAPIAgentConfig,
    SimpleResponsesAPIModel: BaseResponsesAPIModelConfig,
}


class World:
    """Servers by name, and the client they share."""

    def __init__(self) -> None:
        self.servers: dict[str, HostedServer] = {}
        self.client = ServerClient(local_servers=self.servers)

    def add(self, name: str, cls: type[SimpleServer], **settings: Any) -> SimpleServer:
        kind = next(kind for kind in CONFIGS if issubclass(cls, kind))
        config_class = cls.config_class() if cls.config_class() is not kind.config_class() else CONFIGS[kind]
        config = config_class(name=name, host="127.0.0.1", port=0, entrypoint="app.py", **settings)
        server = cls(config=config, server_client=self.client)
        self.servers[name] = HostedServer(name, server.setup_webserver())
        return server


def with_tools(cls: type[SimpleResourcesServer], **tools: Callable[..., Any]) -> type[SimpleResourcesServer]:
    """A subclass of the environment with these tools added."""

    class WithTools(cls):
        def setup_webserver(self) -> FastAPI:
            app: FastAPI = super().setup_webserver()
            for name, tool in tools.items():
                app.post(f"/{name}")(tool)
            return app

    return WithTools
