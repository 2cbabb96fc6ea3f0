"""vllm_model with a real engine: llama.cpp's own HTTP server and the tokens of a real model."""

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.http import request
from nemo_gym.server_utils import ClientResponse
from responses_api_models.vllm_model.tests.model_under_test import (
    REPLAY,
    client_of,
    new_model,
    text_of,
    texts_of,
    user,
)

SERVER = Path(__file__).with_name("llama_server.py")
TEMPLATE = SERVER.with_name("chatml_with_tools.jinja")
GREEDY = {"temperature": 0, "seed": 3}
EOS = 2
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def call(city: str, call_id: str) -> dict[str, Any]:
    arguments = json.dumps({"city": city})
    return {"type": "function_call", "name": "weather", "arguments": arguments, "call_id": call_id}


def output(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


FEW_SHOT = [user("Paris?"), call("Paris", "c0"), user("Rome?"), call("Rome", "c1"), user("Oslo?")]
"""With two examples in the prompt, the small model calls the tool."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the engine; the engine ends when its standard input does."""
    log = tmp_path_factory.mktemp("engine") / "stderr"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(SERVER), str(TEMPLATE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        assert address.startswith("http://"), f"the engine did not start: {log.read_text()[-2000:]}"
        yield address
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


async def post(client: Any, body: Any, path: str = "/v1/responses") -> ClientResponse:
    return await client.post("policy_model", path, json=body)


def respond(engine: str, body: Any, path: str = "/v1/responses", **settings: Any) -> ClientResponse:
    model = new_model(base_url=f"{engine}/v1", **settings)
    return asyncio.run(post(client_of(model), body, path))


def json_of(response: ClientResponse) -> Any:
    assert response.ok, text_of(response)
    return asyncio.run(response.json())


def test_same_seed_gives_the_same_response(engine: str) -> None:
    body = {"input": "Say hi", "max_output_tokens": 8, **GREEDY}
    one, other = (json_of(respond(engine, body)) for _ in range(2))
    assert texts_of(one) == texts_of(other)
    assert len(texts_of(one)[0][1]) > 5
    assert (one["status"], one["usage"]["output_tokens"]) == ("incomplete", 8)
    assert one["usage"]["input_tokens"] > 0


def test_model_calls_a_tool_and_reads_its_output(engine: str) -> None:
    tools = {"tools": [WEATHER], "max_output_tokens": 40, **GREEDY}
    called = json_of(respond(engine, {"input": FEW_SHOT, **tools}))
    made = called["output"][-1]
    assert (made["type"], made["name"], json.loads(made["arguments"])) == (
        "function_call",
        "weather",
        {"city": "Oslo"},
    )
    tool_output = [*FEW_SHOT, *called["output"], output(made["call_id"], "It rains.")]
    final = json_of(respond(engine, {"input": tool_output, **tools, "max_output_tokens": 4}))
    assert final["output"]
    assert final["usage"]["input_tokens"] > called["usage"]["input_tokens"]


def test_log_probabilities_are_those_of_the_engine(engine: str) -> None:
    body = {"messages": [user("Say hi")], "max_tokens": 6, "logprobs": True, "top_logprobs": 1, **GREEDY}
    through = json_of(respond(engine, body, "/v1/chat/completions"))
    direct = json_of(asyncio.run(request("POST", f"{engine}/v1/chat/completions", json=body)))
    ours, theirs = (response["choices"][0]["logprobs"]["content"] for response in (through, direct))
    assert [entry["token"] for entry in ours] == [entry["token"] for entry in theirs]
    assert [entry["logprob"] for entry in ours] == pytest.approx([entry["logprob"] for entry in theirs])
    assert all(math.isfinite(entry["logprob"]) and entry["logprob"] <= 0 for entry in ours)
    assert "".join(entry["token"] for entry in ours) == through["choices"][0]["message"]["content"]


def test_too_long_prompt_gives_an_incomplete_response(engine: str) -> None:
    response = json_of(respond(engine, {"input": "word " * 1500, "max_output_tokens": 4}))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert texts_of(response) == [("message", "")]


@pytest.mark.parametrize("extra_body", [{}, {"top_logprobs": 1}])
def test_engine_without_token_ids_is_an_error_with_token_information(
    engine: str, extra_body: dict[str, Any]
) -> None:
    body = {"input": "Say hi", "max_output_tokens": 2}
    response = respond(engine, body, return_token_id_information=True, extra_body=extra_body)
    assert response.status == 502
    assert "the endpoint returns no token ids" in text_of(response)


class VLLMRoutes:
    """The routes of vLLM that accept and return token ids, served by the real engine."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    async def tokenize(self, http_request: web.Request) -> web.Response:
        body = await http_request.json()
        tokens = await self._post("/tokenize", {"content": await self._render(body), "parse_special": True})
        return web.json_response({**tokens, "max_model_len": 1024})

    async def _render(self, body: Any) -> str:
        if body["add_generation_prompt"]:
            return str((await self._post("/apply-template", body))["prompt"])
        # This engine continues a last assistant message, so it is rendered with another message after it.
        longer = {**body, "messages": [*body["messages"], user("?")]}
        text = str((await self._post("/apply-template", longer))["prompt"])
        return text[: text.rindex("<|im_start|>user")]

    async def complete(self, http_request: web.Request) -> web.Response:
        body = {**await http_request.json(), "logprobs": 1}  # with 0 this engine returns none
        response = await self._post("/v1/completions", body)
        (choice,) = response["choices"]
        content = choice["logprobs"]["content"]
        ids = [entry["id"] for entry in content]
        choice["token_ids"], choice["prompt_token_ids"] = ids, body["prompt"]
        choice["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in ids],
            "token_logprobs": [entry["logprob"] for entry in content],
        }
        return web.json_response(response)

    async def _post(self, path: str, body: Any) -> Any:
        response = await request("POST", self._engine + path, json=body)
        assert response.ok, await response.text()
        return await response.json()


async def tool_loop(engine: str) -> list[Any]:
    """Three turns with the real model: a call, the response to its output, and the response to a question."""
    routes = VLLMRoutes(engine)
    app = web.Application()
    app.router.add_post("/tokenize", routes.tokenize)
    app.router.add_post("/v1/completions", routes.complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    client = client_of(new_model(base_url=url, **{**REPLAY, "eos_token_id": EOS}))
    items: list[Any] = list(FEW_SHOT)
    responses = []
    for longest in (40, 6, 6):
        body = {"input": items, "tools": [WEATHER], "max_output_tokens": longest, **GREEDY}
        posted = await post(client, body)
        assert posted.ok, await posted.text()
        responses.append(await posted.json())
        last = responses[-1]["output"][-1]
        items += responses[-1]["output"]
        items.append(output(last["call_id"], "Rain.") if last["type"] == "function_call" else user("And?"))
    await runner.cleanup()
    return responses


def test_prompt_of_a_turn_starts_with_the_sampled_ids_of_earlier_turns(engine: str) -> None:
    first, second, third = asyncio.run(tool_loop(engine))
    assert texts_of(first)[-1] == ("function_call", 'weather {"city": "Oslo"}')
    for before, after in ((first, second), (second, third)):
        known, item = before["output"][-1], after["output"][-1]
        seen = [*known["prompt_token_ids"], *known["generation_token_ids"]]
        assert item["prompt_token_ids"][: len(seen)] == seen
        assert len(item["prompt_token_ids"]) > len(seen)
        assert len(item["generation_token_ids"]) == len(item["generation_log_probs"])
    assert first["output"][-1]["generation_token_ids"][-1] == EOS
