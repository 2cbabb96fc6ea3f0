"""Limits of requests to the endpoint: how many at once, how often, and for how long."""

import asyncio

import pytest
from aiohttp import web

from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.openai_model.tests.model_server import RESPONSES, Json, chat_only, open_model_server
from responses_api_models.openai_model.tests.test_app import most_at_once, new_model
from scripts.scripted_endpoint import Item, ScriptedEndpoint, message


def test_no_pool_holds_requests_back() -> None:
    assert asyncio.run(most_at_once(None, calls=300, expected=300)) == 300


def test_https_requests_do_not_wait_for_a_connection_pool() -> None:
    calls = 150
    together = asyncio.Barrier(calls)

    async def respond_when_all_have_come(request: Json) -> list[Item]:
        async with asyncio.timeout(30):
            await together.wait()
        return [message("hi")]

    async def call(url: str) -> list[int]:
        model = new_model(openai_base_url=url, max_tries=1)
        server = HostedServer("policy_model", model.setup_webserver())
        client = ServerClient(local_servers={"policy_model": server})
        posts = [client.post("policy_model", RESPONSES, json={"input": "x"}) for _ in range(calls)]
        return [response.status for response in await asyncio.gather(*posts)]

    with ScriptedEndpoint(respond_when_all_have_come) as endpoint:
        # Addresses with credentials and HTTPS addresses use aiohttp.
        statuses = asyncio.run(call(endpoint.base_url.replace("//", "//ann:hush@")))
    assert statuses == [200] * calls
    assert all("aiohttp" in headers["User-Agent"] for headers in endpoint.headers)


def test_limit_applies_to_many_concurrent_calls() -> None:
    assert asyncio.run(most_at_once(40, calls=300, expected=40)) == 40


@pytest.mark.parametrize("setting", [{"max_tries": 0}, {"request_timeout_s": 0}, {"upstream_api": "grpc"}])
def test_invalid_settings_are_refused(setting: Json) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))), open_model_server(chat_only, **setting):
        pass


def test_retries_and_delays_are_as_configured() -> None:
    with open_model_server(lambda request: web.Response(status=500), max_tries=1) as it:
        assert asyncio.run(it.post({"input": "x"})).status == 500
        assert len(it.requests) == 1

    async def hang(request: Json) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with open_model_server(hang, request_timeout_s=0.1) as it:
        response = asyncio.run(it.post({"input": "x"}))
        assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
        assert "no response within 0.1 s" in asyncio.run(response.text())
