import asyncio
import logging
from functools import cached_property, wraps
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nemo_gym.base_responses_api_model import Body
from nemo_gym.config_types import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import ClientResponse, ServerClient
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from scripts.scripted_endpoint import Script, ScriptedEndpoint, message

SERVER = {"name": "policy_model", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
ENDPOINT = {
    "openai_base_url": "http://127.0.0.1:1/v1",
    "openai_api_key": "key-of-mine",
    "openai_model": "mine",
}


def new_model(model: type[OpenAIModel] = OpenAIModel, **settings: Any) -> OpenAIModel:
    config = OpenAIModelConfig.model_validate({**SERVER, **ENDPOINT, **settings})
    return model(config=config, server_client=ServerClient())


class Exchange:
    """A request to a model server in front of a scripted endpoint, and its response."""

    def __init__(self, script: Script, body: Any, path: str = "/v1/responses", **settings: Any) -> None:
        with ScriptedEndpoint(script) as endpoint:
            model = new_model(**{"openai_base_url": endpoint.base_url, **settings})
            server = HostedServer("policy_model", model.setup_webserver())
            client = ServerClient(local_servers={"policy_model": server})
            self.response: ClientResponse = asyncio.run(client.post("policy_model", path, json=body))
            self.requests = endpoint.requests
            self.headers = endpoint.headers

    @property
    def json(self) -> Any:
        return asyncio.run(self.response.json())


def hi(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [message("hi")]


def test_requested_model_is_the_configured_one() -> None:
    exchange = Exchange(hi, {"input": "x", "model": "another"})
    assert exchange.requests == [{"input": "x", "model": "mine"}]
    assert exchange.response.status == 200
    assert exchange.json["output"] == [message("hi")]


class Polite(OpenAIModel):
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        body.input = [NeMoGymEasyInputMessage(role="system", content="Be polite."), *body.input]
        return await super().responses(body)


def polite(function: Any) -> Any:
    @wraps(function)
    async def wrapper(self: Any, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> Any:
        body.input = [NeMoGymEasyInputMessage(role="system", content="Be polite."), *body.input]
        return await function(self, body)

    return wrapper


class Wrapped(OpenAIModel):
    responses = polite(OpenAIModel.responses)


@pytest.mark.parametrize("subclass", [Polite, Wrapped])
def test_subclass_gets_requests_as_models_and_may_change_them(subclass: type[OpenAIModel]) -> None:
    with ScriptedEndpoint(hi) as endpoint:
        model = new_model(subclass, openai_base_url=endpoint.base_url)
        server = HostedServer("policy_model", model.setup_webserver())
        client = ServerClient(local_servers={"policy_model": server})
        body = {"input": [{"role": "user", "content": "x"}]}
        response = asyncio.run(client.post("policy_model", "/v1/responses", json=body))
    assert response.status == 200
    assert [item["role"] for item in endpoint.requests[0]["input"]] == ["system", "user"]


@pytest.mark.parametrize("address", ["127.0.0.1:9/v1", "localhost:8000", "ftp://host/v1", "http:///v1", ""])
def test_invalid_address_is_refused_before_anything_starts(address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of an endpoint; write it like http://"):
        OpenAIModel.check_config(new_model(openai_base_url=address).config)


def test_extra_body_adds_fields_and_those_of_the_request_win() -> None:
    extra = {"temperature": 0.5, "vendor": {"a": [1]}, "max_output_tokens": 5, "model": "other"}
    params = {"input": "x", "temperature": 1.0, "top_p": 0.9, "max_output_tokens": 9}
    exchange = Exchange(hi, params, extra_body=extra)
    assert exchange.requests == [{**params, "model": "mine", "vendor": {"a": [1]}}]


def test_key_and_default_headers_are_sent() -> None:
    exchange = Exchange(hi, {"input": "x"}, openai_default_headers={"X-Team": "gym"})
    (headers,) = exchange.headers
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer key-of-mine", "gym")
    assert headers["Content-Type"] == "application/json"


def test_default_headers_may_replace_the_authorization() -> None:
    (headers,) = Exchange(hi, {"input": "x"}, openai_default_headers={"authorization": "Basic abc"}).headers
    assert headers["Authorization"] == "Basic abc"


def test_credentials_in_the_url_are_used() -> None:
    with ScriptedEndpoint(hi) as endpoint:
        url = endpoint.base_url.replace("//", "//ann:hush@")
        response = asyncio.run(NeMoGymAsyncOpenAI(url, "unused").create_response(input="x", model="m"))
        assert response["output"] == [message("hi")]
        assert endpoint.headers[0]["Authorization"] == "Basic YW5uOmh1c2g="


def test_unknown_fields_are_kept_in_both_directions() -> None:
    def script(request: dict[str, Any]) -> web.Response:
        item = {"type": "vendor_item", "secret_sauce": [1, None]}
        return web.json_response({"output": [item, message("hi")], "vendor": {"x": request["vendor"]}})

    exchange = Exchange(
        script, {"input": [{"role": "user", "content": "x", "vendor": 1}], "vendor": {"b": None}}
    )
    assert exchange.requests[0]["vendor"] == {"b": None}
    assert exchange.requests[0]["input"] == [{"role": "user", "content": "x", "vendor": 1}]
    assert exchange.json["vendor"] == {"x": {"b": None}}
    assert exchange.json["output"][0].items() >= {"type": "vendor_item", "secret_sauce": [1, None]}.items()


def test_chat_request_goes_to_the_chat_route_with_unknown_fields() -> None:
    def script(request: dict[str, Any]) -> web.Response:
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "hi", "reasoning_content": "hm"},
            "vendor": 1,
        }
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "vendor": 2})

    body = {"messages": [{"role": "user", "content": "x"}], "seed": 3, "vendor": 4}
    exchange = Exchange(script, body, "/v1/chat/completions")
    assert exchange.requests == [{**body, "model": "mine"}]
    assert exchange.json["choices"][0]["message"]["reasoning_content"] == "hm"
    assert (exchange.json["choices"][0]["vendor"], exchange.json["vendor"]) == (1, 2)


def test_seed_is_passed_on() -> None:
    assert Exchange(hi, {"input": "x", "seed": 3}).requests[0]["seed"] == 3


def test_openai_gets_no_seed_with_responses_and_one_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedEndpoint(hi) as endpoint:

        class OnLoopback(OpenAIModel):
            """Has the address of OpenAI, and calls the scripted endpoint."""

            @cached_property
            def endpoint(self) -> NeMoGymAsyncOpenAI:
                return NeMoGymAsyncOpenAI(endpoint.base_url, "k")

        model = new_model(OnLoopback, openai_base_url="https://api.openai.com/v1")
        server = HostedServer("policy_model", model.setup_webserver())
        client = ServerClient(local_servers={"policy_model": server})

        async def call() -> None:
            for body in ({"input": "x", "seed": 3}, {"input": "x", "seed": 4}, {"input": "x"}):
                assert (await client.post("policy_model", "/v1/responses", json=body)).ok
            chat = {"messages": [], "seed": 5}
            await client.post("policy_model", "/v1/chat/completions", json=chat)

        asyncio.run(call())
    assert ["seed" in request for request in endpoint.requests] == [False, False, False, True]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["policy_model: this endpoint does not accept a seed; it is not sent"]


class Turnstile:
    """An endpoint that responds to no request before it is released."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()

    async def respond(self, request: web.Request) -> web.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.arrived.set()
        await self.release.wait()
        self.inside -= 1
        return web.json_response({"output": []})


async def most_at_once(limit: int | None, calls: int, expected: int) -> int:
    turnstile = Turnstile()
    app = web.Application()
    app.router.add_post("/v1/responses", turnstile.respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model = new_model(
        openai_base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1", max_concurrent_requests=limit
    )
    server = HostedServer("policy_model", model.setup_webserver())
    client = ServerClient(local_servers={"policy_model": server})
    waiting = [
        asyncio.create_task(client.post("policy_model", "/v1/responses", json={"input": "x"}))
        for _ in range(calls)
    ]
    async with asyncio.timeout(30):
        while turnstile.inside < expected:
            await turnstile.arrived.wait()
            turnstile.arrived.clear()
    for _ in range(50):  # every request that the limit allows arrives
        await asyncio.sleep(0)
    turnstile.release.set()
    assert [response.status for response in await asyncio.gather(*waiting)] == [200] * calls
    await runner.cleanup()
    return turnstile.most


def test_no_more_requests_at_once_than_allowed() -> None:
    assert asyncio.run(most_at_once(3, calls=10, expected=3)) == 3


def test_without_a_limit_all_requests_go_at_once() -> None:
    assert asyncio.run(most_at_once(None, calls=10, expected=10)) == 10


def test_limit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrent_requests"):
        new_model(max_concurrent_requests=0)


def test_request_cancelled_while_waiting_leaves_nothing_behind() -> None:
    async def run() -> None:
        model = new_model(max_concurrent_requests=1)
        server = HostedServer("policy_model", model.setup_webserver())
        client = ServerClient(local_servers={"policy_model": server})
        async with model.slots:
            call = asyncio.create_task(client.post("policy_model", "/v1/responses", json={"input": "x"}))
            for _ in range(5):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(run())


@pytest.mark.parametrize("text", ["<html>busy</html>", "", "[1]", '"text"', "null"])
def test_response_that_is_not_a_json_object_is_a_failure_of_the_endpoint(text: str) -> None:
    exchange = Exchange(lambda request: web.Response(text=text, content_type="text/html"), {"input": "x"})
    assert exchange.response.status == 502
    assert exchange.response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
    assert asyncio.run(exchange.response.text()) == f"the endpoint's response is not a JSON object: {text}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "data"), (401, "configuration"), (404, "data"), (422, "data"), (501, "infrastructure")],
)
def test_error_of_the_endpoint_is_passed_on_with_status_and_body(status: int, kind: str) -> None:
    body = '{"error": {"message": "too long", "code": "context_length_exceeded"}}'
    exchange = Exchange(lambda request: web.Response(status=status, text=body), {"input": "x"})
    assert (exchange.response.status, asyncio.run(exchange.response.text())) == (status, body)
    assert exchange.response.headers["x-nemo-gym-failure-kind"] == kind
    assert exchange.response.headers["x-nemo-gym-failure-server"] == "policy_model"
    assert len(exchange.requests) == 1


@pytest.mark.parametrize("status", [503, 529])
def test_call_is_retried_if_the_endpoint_fails_once(status: int) -> None:
    responses = iter([web.Response(status=status, headers={"Retry-After": "0.01"}), [message("hi")]])
    exchange = Exchange(lambda request: next(responses), {"input": "x"})
    assert (exchange.response.status, len(exchange.requests)) == (200, 2)


def test_invalid_request_is_refused_by_the_server_itself() -> None:
    exchange = Exchange(hi, {"input": 7})
    assert (exchange.response.status, exchange.requests) == (422, [])
    assert exchange.json["detail"][0]["loc"] == ["body", "input"]


def test_response_without_optional_fields_is_accepted() -> None:
    exchange = Exchange(lambda request: web.json_response({"output": []}), {"input": "x"})
    assert exchange.response.status == 200
    assert exchange.json["output"] == []


def client_at(endpoint: ScriptedEndpoint) -> NeMoGymAsyncOpenAI:
    return NeMoGymAsyncOpenAI(f"{endpoint.base_url}/", "k")


def test_client_accepts_keyword_arguments_and_returns_dictionaries() -> None:
    with ScriptedEndpoint(hi) as endpoint:
        client = client_at(endpoint)
        response = asyncio.run(client.create_response(model="m", input="x"))
        chat = asyncio.run(client.create_chat_completion(model="m", messages=[]))
    assert response["output"] == [message("hi")]
    assert isinstance(chat, dict)
    assert endpoint.requests == [{"model": "m", "input": "x"}, {"model": "m", "messages": []}]


def test_client_finds_every_route() -> None:
    seen: list[tuple[str, str, str]] = []

    async def run() -> None:
        async def note(request: web.Request) -> web.Response:
            seen.append((request.method, request.path_qs, await request.text()))
            return web.json_response({})

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", note)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = NeMoGymAsyncOpenAI(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "k")
        await client.create_completion(prompt="p")
        await client.create_models()
        await client.create_tokenize(prompt="p")
        await runner.cleanup()

    asyncio.run(run())
    assert seen == [
        ("POST", "/v1/completions", '{"prompt":"p"}'),
        ("GET", "/v1/models", ""),
        ("POST", "/tokenize", '{"prompt":"p"}'),
    ]


def test_client_of_our_own_server_leaves_retries_to_it() -> None:
    with ScriptedEndpoint(lambda request: web.Response(status=503)) as endpoint:
        client = NeMoGymAsyncOpenAI(endpoint.base_url, "k", internal=True)
        with pytest.raises(aiohttp.ClientResponseError, match="503"):
            asyncio.run(client.create_response(model="m", input="x"))
    assert len(endpoint.requests) == 1
