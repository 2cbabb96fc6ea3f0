"""A vllm_model server in this process with stand-ins for engines, and helpers for its tests."""

import asyncio
from collections.abc import Sequence
from typing import Any

from nemo_gym.server_utils import ClientResponse, ServerClient
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.vllm_model.app import VLLMModel
from responses_api_models.vllm_model.vllm_model_config import VLLMModelConfig
from tests.support.vllm_stand_in import EOS, VLLMStandIn

PLACE = {"name": "policy_model", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
NOWHERE = {"base_url": "http://127.0.0.1:1/v1", "api_key": "key-of-mine", "model": "mine"}
REPLAY = {
    "return_token_id_information": True,
    "token_id_replay": "completions",
    "eos_token_id": EOS,
}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def new_model(**settings: Any) -> VLLMModel:
    config = VLLMModelConfig.model_validate({**PLACE, **NOWHERE, **settings})
    return VLLMModel(config=config, server_client=ServerClient())


def client_of(model: VLLMModel) -> ServerClient:
    return ServerClient(local_servers={"policy_model": HostedServer("policy_model", model.setup_webserver())})


class Gym:
    """A model server and its stand-in engines."""

    def __init__(self, *stand_ins: VLLMStandIn, **settings: Any) -> None:
        urls = [stand_in.base_url for stand_in in stand_ins]
        self.model = new_model(**{"base_url": urls if len(urls) > 1 else urls[0], **settings})
        self._client = client_of(self.model)

    def post(self, body: Any, path: str = "/v1/responses") -> ClientResponse:
        return asyncio.run(self._client.post("policy_model", path, json=body))

    def respond(self, body: Any, path: str = "/v1/responses") -> Any:
        response = self.post(body, path)
        assert response.ok, text_of(response)
        return asyncio.run(response.json())

    def chat(self, body: Any) -> Any:
        return self.respond(body, "/v1/chat/completions")

    def converse(self, *texts: str, **fields: Any) -> list[Any]:
        """The responses of one conversation with these user messages."""
        items: list[Any] = []
        responses = []
        for text in texts:
            items.append({"role": "user", "content": text})
            response = self.respond({**fields, "input": items})
            items += response["output"]
            responses.append(response)
        return responses


def text_of(response: ClientResponse) -> str:
    return asyncio.run(response.text())


def user(text: str = "x") -> dict[str, Any]:
    return {"role": "user", "content": text}


def read_and_sampled(response: Any) -> list[int]:
    """The ids of everything that the model had read and sampled at the end of this call."""
    last = response["output"][-1]
    return [*last["prompt_token_ids"], *last["generation_token_ids"]]


def texts_of(response: Any) -> list[tuple[str, str]]:
    """The type and the text of each output item."""
    return [(item["type"], _text(item)) for item in response["output"]]


def _text(item: Any) -> str:
    if item["type"] == "function_call":
        return f"{item['name']} {item['arguments']}"
    parts: Sequence[Any] = item.get("content") or item.get("summary") or []
    return "".join(part["text"] for part in parts)
