"""A failure keeps its cause on the way up: model endpoint, model server, agent, collector."""

import asyncio
import logging
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fastapi import HTTPException

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.errors import JudgeError
from nemo_gym.http import ClientResponse, ServerCallError, raise_for_status
from nemo_gym.servers.hosted import HostedServer
from responses_api_agents.simple_agent.app import SimpleAgent
from responses_api_models.openai_model.app import OpenAIModel
from scripts.scripted_endpoint import Script, ScriptedEndpoint, function_call, message, tool_outputs
from tests.gym.servers.kinds import World, with_tools
from tests.gym.servers.serving import local_client, new_app, post
from tests.support.commands import free_port

ROW = {"responses_create_params": {"input": "hello"}, "task": 7}


class Environment(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
        return body.model_dump(exclude_unset=True) | {"reward": 1.0}


class BrokenEnvironment(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
        raise LookupError("no key for task 7")


def run_row(script: Script, environment: type[SimpleResourcesServer] = Environment) -> ClientResponse:
    with ScriptedEndpoint(script) as endpoint:
        return run_row_at(endpoint.base_url, environment)


def run_row_at(
    base_url: str, environment: type[SimpleResourcesServer] = Environment, **settings: Any
) -> ClientResponse:
    world = World()
    world.add("tools", environment)
    endpoint = {"openai_base_url": base_url, "openai_api_key": "sk-hush", "openai_model": "m"}
    world.add("policy_model", OpenAIModel, **endpoint, **settings)
    world.add(
        "agent",
        SimpleAgent,
        resources_server={"type": "resources_servers", "name": "tools"},
        model_server={"type": "responses_api_models", "name": "policy_model"},
    )
    return asyncio.run(world.client.post("agent", "/run", json=ROW))


def cause_of(response: ClientResponse) -> tuple[int, str, int, str]:
    with pytest.raises(ServerCallError) as caught:
        asyncio.run(raise_for_status(response))
    error = caught.value
    return error.status, error.server, error.origin_status, error.kind


def responding(status: int, **headers: str) -> Script:
    return lambda request: web.Response(status=status, text='{"error": "because"}', headers=headers)


def test_invalid_model_response_says_what_is_wrong_with_it() -> None:
    response = run_row(lambda request: [{"type": "function_call", "call_id": "c", "name": "no_arguments"}])
    assert cause_of(response) == (500, "policy_model", 500, "data")
    assert "arguments: Field required" in asyncio.run(response.text())


def test_rollout_without_a_failure_names_no_cause() -> None:
    response = run_row(lambda request: [message("hi")])
    assert response.status == 200
    assert not [name for name in response.headers if name.lower().startswith("x-nemo-gym-failure")]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "data"), (422, "data"), (401, "configuration"), (403, "configuration"), (404, "configuration")],
)
def test_error_status_of_the_endpoint_keeps_its_kind_and_server_up_to_the_agent(
    status: int, kind: str
) -> None:
    response = run_row(responding(status))
    assert cause_of(response) == (500, "policy_model", status, kind)
    assert "because" in asyncio.run(response.text())


def test_failure_of_the_endpoint_is_infrastructure() -> None:
    response = run_row(responding(503, **{"Retry-After": "0.01"}))
    assert cause_of(response) == (500, "policy_model", 503, "infrastructure")


def test_endpoint_that_refuses_connections_is_infrastructure() -> None:
    response = run_row_at(f"http://127.0.0.1:{free_port()}/v1")
    status, server, _, kind = cause_of(response)
    assert (status, server, kind) == (500, "policy_model", "infrastructure")


@pytest.mark.parametrize(
    ("errno", "kind"), [(socket.EAI_NONAME, "configuration"), (socket.EAI_AGAIN, "infrastructure")]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_endpoint_whose_address_does_not_resolve_is_configuration(
    errno: int, kind: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_host(*args: Any, **options: Any) -> Any:
        raise socket.gaierror(errno, "no such host")

    class NoReason:
        """Like the resolver that aiohttp prefers if aiodns is installed: its error does not say why."""

        def __init__(self, **options: Any) -> None: ...

        async def resolve(self, *args: Any, **options: Any) -> Any:
            raise OSError(None, "no such host")

        async def close(self) -> None: ...

    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    monkeypatch.setattr("aiohttp.connector.DefaultResolver", NoReason)
    response = run_row_at(f"{scheme}://no-such-host.invalid/v1", max_tries=1)
    assert cause_of(response) == (500, "policy_model", 503, kind)
    assert "no-such-host.invalid" in asyncio.run(response.text())


def test_endpoint_response_that_is_not_json_is_infrastructure() -> None:
    response = run_row(lambda request: web.Response(text="<html>busy</html>"))
    assert cause_of(response) == (500, "policy_model", 502, "infrastructure")
    assert "<html>busy" in asyncio.run(response.text())


def test_exception_of_an_environment_is_a_data_failure_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = run_row(lambda request: [message("hi")], BrokenEnvironment)
    assert cause_of(response) == (500, "tools", 500, "data")
    assert "no key for task 7" in asyncio.run(response.text())
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "tools: LookupError('no key for task 7')"
    assert record.exc_info and record.exc_info[0] is LookupError
    assert "raise LookupError" in caplog.text


def test_exception_of_a_tool_goes_to_the_model_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(body: dict[str, Any]) -> None:
        raise LookupError("no such shelf")

    def script(request: dict[str, Any]) -> list[dict[str, Any]]:
        outputs = tool_outputs(request)
        return [message(outputs[0])] if outputs else [function_call("broken")]

    response = run_row(script, with_tools(Environment, broken=broken))
    assert response.status == 200
    rollout = asyncio.run(response.json())
    assert rollout["response"]["output"][1]["output"] == "\"LookupError('no such shelf')\""
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "tools: LookupError('no such shelf')"
    ]


@pytest.mark.parametrize(
    ("tool", "output"), [("no_such_tool", "there is no tool named"), ("find", "no such book")]
)
def test_404_of_a_tool_goes_to_the_model(tool: str, output: str) -> None:
    async def find(body: dict[str, Any]) -> None:
        raise HTTPException(404, "no such book")

    def script(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [message("sorry")] if tool_outputs(request) else [function_call(tool)]

    response = run_row(script, with_tools(Environment, find=find))
    assert response.status == 200
    assert output in asyncio.run(response.json())["response"]["output"][1]["output"]


def test_row_that_the_verifier_cannot_read_is_data() -> None:
    class Strict(SimpleResourcesServer):
        async def verify(self, body: StrictRequest) -> dict[str, Any]:
            return {"reward": 1.0}

    response = run_row(lambda request: [message("hi")], Strict)
    assert cause_of(response) == (500, "tools", 422, "data")
    assert "wanted" in asyncio.run(response.text())


class StrictRequest(BaseVerifyRequest):
    wanted: str


def test_responses_and_logs_contain_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    responses = [
        run_row(responding(401)),
        run_row(lambda request: web.Response(text="no json")),
        run_row_at(f"http://127.0.0.1:{free_port()}/v1"),
    ]
    for response in responses:
        assert response.status == 500
        assert "sk-hush" not in asyncio.run(response.text())
    assert "sk-hush" not in caplog.text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aiohttp.ClientConnectionError("gone"), "infrastructure"),
        (aiohttp.ServerTimeoutError("late"), "infrastructure"),
        (TimeoutError("the checker is slow"), "data"),
        (ConnectionResetError("its own database"), "data"),
        (JudgeError("no verdict"), "judge_failed"),
    ],
)
def test_exception_of_an_environment_is_data_unless_our_client_raised_it(error: Exception, kind: str) -> None:
    app = new_app()

    async def call(body: dict[str, Any]) -> None:
        raise error

    app.post("/call")(call)
    assert cause_of(post(app, "/call", json={})) == (500, "it", 500, kind)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "data"), (401, "data"), (404, "data"), (422, "data"), (500, "data")]
    + [(status, "infrastructure") for status in (408, 429, 503, 529)],
)
@pytest.mark.parametrize("query", ["", "?through=the-application"])
def test_error_status_that_a_server_chooses_names_its_cause(status: int, kind: str, query: str) -> None:
    app = new_app()

    async def refuse(body: dict[str, Any]) -> None:
        raise HTTPException(status, "no")

    app.post("/refuse")(refuse)
    assert cause_of(post(app, f"/refuse{query}", json={})) == (status, "it", status, kind)


def test_exception_of_an_exception_handler_is_a_response_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()

    async def fail(body: dict[str, Any]) -> None:
        raise KeyError("first")

    @app.exception_handler(KeyError)
    async def handle(request: Any, error: KeyError) -> None:
        raise RuntimeError("second")

    app.post("/fail")(fail)
    response = post(app, "/fail", json={})
    assert cause_of(response) == (500, "it", 500, "data")
    assert [record.getMessage() for record in caplog.records] == ["it: RuntimeError('second')"]


def test_responses_and_logs_contain_no_secret_of_the_configuration(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()

    async def leak(body: dict[str, Any]) -> None:
        raise RuntimeError("cannot log in with sk-very-secret")

    app.post("/leak")(leak)
    server = HostedServer("it", app, frozenset({"sk-very-secret"}))
    response = asyncio.run(local_client(it=server).post("it", "/leak", json={}))
    assert asyncio.run(response.text()) == "\"RuntimeError('cannot log in with ****')\""
    assert "sk-very-secret" not in caplog.text and "Traceback" in caplog.text


def test_refusal_is_logged_in_one_line_by_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    run_row(responding(400))
    refusals = [record.getMessage() for record in caplog.records if "400" in record.getMessage()]
    assert len(refusals) == 1 and refusals[0].startswith("agent: ")
