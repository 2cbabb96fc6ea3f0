"""A model server in front of a scripted endpoint, for the tests beside this file."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from nemo_gym.server_utils import ClientResponse, ServerClient
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from scripts.scripted_endpoint import Script, ScriptedEndpoint, message

Json = dict[str, Any]

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
SETTINGS = {
    "name": "policy_model",
    "host": "127.0.0.1",
    "port": 0,
    "entrypoint": "app.py",
    "openai_api_key": "k",
    "openai_model": "mine",
}
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "x"}]}


def completion(content: str = "hi", **fields: Any) -> Json:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": content, **fields},
    }
    return {"id": "c", "object": "chat.completion", "created": 1, "choices": [choice], "usage": USAGE}


def json_response(data: Json) -> web.Response:
    return web.Response(body=orjson.dumps(data), content_type="application/json")


def missing(status: int = 404) -> web.Response:
    return web.Response(status=status, text="404 page not found")


def chat_only(request: Json) -> web.Response:
    return json_response(completion()) if "messages" in request else missing()


def responses_only(request: Json) -> Any:
    return [message("hi")] if "input" in request else missing(405)


class ModelServer:
    """A model server in front of a scripted endpoint."""

    def __init__(self, model: OpenAIModel, endpoint: ScriptedEndpoint) -> None:
        self.model = model
        self.server = HostedServer("policy_model", model.setup_webserver())
        self.client = ServerClient(local_servers={"policy_model": self.server})
        self.requests = endpoint.requests

    @property
    def apis(self) -> list[str]:
        """Which API each request that reached the endpoint was for."""
        return ["chat" if "messages" in request else "responses" for request in self.requests]

    async def post(self, body: Json, path: str = RESPONSES) -> ClientResponse:
        return await self.client.post("policy_model", path, json=body)

    def post_ok(self, body: Json, path: str = RESPONSES) -> Json:
        """The JSON of the response, whose status must be 200."""
        return asyncio.run(self._ok(body, path))

    async def _ok(self, body: Json, path: str) -> Json:
        response = await self.post(body, path)
        assert response.status == 200, await response.text()
        data: Json = await response.json()
        return data


@contextmanager
def open_model_server(
    script: Script, model_class: type[OpenAIModel] = OpenAIModel, **settings: Any
) -> Iterator[ModelServer]:
    with ScriptedEndpoint(script) as endpoint:
        values = {**SETTINGS, "openai_base_url": endpoint.base_url, **settings}
        model = model_class(config=OpenAIModelConfig.model_validate(values), server_client=ServerClient())
        yield ModelServer(model, endpoint)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
