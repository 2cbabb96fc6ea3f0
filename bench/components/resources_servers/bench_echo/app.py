"""A minimal environment, to measure the cost of a call."""

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer


class EchoRequest(BaseModel):
    text: str
    number: int


class EchoResponse(BaseModel):
    text: str
    number: int


class BenchEchoServer(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/echo")(self.echo)
        return app

    async def echo(self, body: EchoRequest) -> EchoResponse:
        return EchoResponse(text=body.text, number=body.number)
