"""A caller in this process gets what a caller over HTTP gets, however the response is passed on."""

import asyncio
import json
import re
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.server_utils import ServerClient
from responses_api_models.openai_model.tests.model_server import (
    CHAT,
    HI,
    RESPONSES,
    json_response,
    open_model_server,
)
from tests.gym.servers.serving import served, served_config

TOKENS = '"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": %s'
RESPONSE = (
    '{"id": "r", "created_at": 1, "n": %s, "big": 123456789012345678901, "vendor": {"list": [1]}, "output": '
    '[{"id": "m", "type": "message", "content": [{"type": "output_text", "text": "hi \u00e9"}], %s}]}'
)
COMPLETION = (
    '{"id": "c", "created": 2, "vendor": {"list": [%s]}, "usage": {"prompt_tokens": 1}, '
    '"choices": [{"message": {"role": "assistant", "content": "hi", "vendor": 1, %s}}]}'
)
OWN_ID = re.compile(r"(msg|rs|fc)_[0-9a-f]{33}|(created|completed)_at\W+[\d.]+")
"""Fields that differ between two conversions: generated ids and times."""


async def all_of(client: ServerClient) -> list[Any]:
    """Everything that can be read from the responses of both routes, read in several orders."""
    found: list[Any] = []
    for path, body in ((RESPONSES, {"input": "x"}), (CHAT, HI)):
        response = await client.post("policy_model", path, json=body)
        found += [response.status, response.ok, response.headers["content-type"]]
        found += [await response.json(), await response.read(), await response.json(), await response.text()]
        response = await client.post("policy_model", path, json=body)
        found += [await response.content.read(), await response.json()]
    return found


@pytest.mark.parametrize("number", ["NaN", "1.5"])
@pytest.mark.parametrize("upstream", ["auto", "responses", "chat_completions"])
@pytest.mark.parametrize("log_probs", ["[-0.5, 0]", "[-0.5, null]", "[-1e999, NaN]", "[]", '["x", 1]'])
def test_responses_are_the_same_in_process_and_over_http(upstream: str, log_probs: str, number: str) -> None:
    def script(request: dict[str, Any]) -> web.Response:
        text = COMPLETION if "messages" in request else RESPONSE
        return web.Response(text=text % (number, TOKENS % log_probs))

    with open_model_server(script, upstream_api=upstream) as it, served(it.server) as url:
        over_http = ServerClient(global_config_dict=served_config("policy_model", url))
        local, remote = asyncio.run(all_of(it.client)), asyncio.run(all_of(over_http))
    assert OWN_ID.sub("id", repr(local)) == OWN_ID.sub("id", repr(remote))
    assert local[0] == (500 if "x" in log_probs else 200)


def test_response_can_be_read_again_after_a_reader_changed_it() -> None:
    async def run(client: ServerClient) -> list[Any]:
        response = await client.post("policy_model", RESPONSES, json={"input": "x"})
        first = await response.json()
        first["output"][0]["content"].append({"type": "output_text", "text": "more"})
        first["output"].append(first.pop("vendor"))
        return [await response.json(), await response.read()]

    text = RESPONSE % ("1.5", TOKENS % "[-0.5, -0.25]")
    with open_model_server(lambda request: web.Response(text=text)) as it:
        second, body = asyncio.run(run(it.client))
    assert second == json.loads(body)
    assert [part["text"] for item in second["output"] for part in item["content"]] == ["hi \u00e9"]
    assert second["vendor"] == {"list": [1]}


def test_half_a_surrogate_pair_fails_the_same_way() -> None:
    with (
        open_model_server(lambda request: web.Response(text='{"output": [], "x": "\\ud800"}')) as it,
        served(it.server) as url,
    ):
        over_http = ServerClient(global_config_dict=served_config("policy_model", url))
        statuses = [
            asyncio.run(client.post("policy_model", RESPONSES, json={"input": "x"})).status
            for client in (it.client, over_http)
        ]
    assert statuses[0] == statuses[1]


@pytest.mark.parametrize(
    "bad",
    [{"output": 7}, {"output": [], "error": "boom"}, {"output": [], "usage": 3}, {"output": [{"a": 1}]}],
)
def test_invalid_response_is_the_same_failure_in_both_transports(bad: dict[str, Any]) -> None:
    with open_model_server(lambda request: json_response(bad)) as it:
        local = asyncio.run(it.post({"input": "x"}))
        with served(it.server) as url:
            client = ServerClient(global_config_dict=served_config("policy_model", url))
            remote = asyncio.run(client.post("policy_model", RESPONSES, json={"input": "x"}))
    assert local.status == remote.status == 500
    assert asyncio.run(local.text()) == asyncio.run(remote.text())


@pytest.mark.parametrize(
    "body",
    [
        '{"input": "x", "temperature": NaN, "top_p": NaN}',
        '{"input": "x", "metadata": {"a": "\\ud800"}}',
        '{"input": "x", "metadata": {"\\ud800": "a"}}',
        '{"input": "x", "metadata": {"a": ' + "[" * 300 + "]" * 300 + "}}",
    ],
)
@pytest.mark.parametrize("upstream", ["responses", "chat_completions"])
def test_unusual_request_has_the_same_outcome_in_both_transports(upstream: str, body: str) -> None:
    def script(request: dict[str, Any]) -> web.Response:
        return web.Response(text=(COMPLETION if "messages" in request else RESPONSE) % ("1", TOKENS % "[]"))

    async def outcome(client: ServerClient) -> list[Any]:
        headers = {"content-type": "application/json"}
        response = await client.post("policy_model", RESPONSES, data=body.encode(), headers=headers)
        return [response.status, await response.text()]

    with open_model_server(script, upstream_api=upstream) as it, served(it.server) as url:
        over_http = ServerClient(global_config_dict=served_config("policy_model", url))
        local, remote = asyncio.run(outcome(it.client)), asyncio.run(outcome(over_http))
    assert OWN_ID.sub("id", repr(local)) == OWN_ID.sub("id", repr(remote))
    assert it.requests[: len(it.requests) // 2] == it.requests[len(it.requests) // 2 :]
    assert all("temperature" not in request for request in it.requests if "messages" in request)
