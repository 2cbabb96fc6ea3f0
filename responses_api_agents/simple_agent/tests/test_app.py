import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import is_reserved_tool_name
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.server_utils import SESSION_ID_KEY, ClientResponse, ServerClient
from nemo_gym.servers.hosted import HostedServer
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from scripts.scripted_endpoint import Item, function_call, message, tool_outputs

Script = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the body of a Responses request; returns the model response."""


def model_response(*items: Item, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return {"id": "r", "output": list(items), "usage": usage} | more


class Model(SimpleResponsesAPIModel):
    """Responds with the output of the script, valid or not."""

    script: Script
    requests: list[dict[str, Any]] = Field(default_factory=list)
    sessions: list[str] = Field(default_factory=list)

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/v1/responses")(self.respond)
        return app

    async def respond(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(body)
        self.sessions.append(request.session[SESSION_ID_KEY])
        return self.script(body)


class Environment(SimpleResourcesServer):
    """Tools that record their calls; a verifier that gives reward 1."""

    calls: list[tuple[str, Any]] = Field(default_factory=list)
    sessions: list[str] = Field(default_factory=list)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        app.post("/any")(self.any)
        app.post("/refuse")(self.refuse)
        app.post("/gone")(self.gone)
        app.post("/crash")(self.crash)
        app.post("/text")(self.text)
        return app

    def note(self, request: Request, name: str, body: Any) -> None:
        self.calls.append((name, body))
        self.sessions.append(request.session[SESSION_ID_KEY])

    async def seed_session(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self.note(request, "seed_session", body)
        return {}

    async def add(self, request: Request, body: dict[str, int]) -> int:
        self.note(request, "add", body)
        return sum(body.values())

    async def any(self, request: Request) -> str:
        self.note(request, "any", json.loads(await request.body() or b"null"))
        return "ok"

    async def refuse(self) -> None:
        raise HTTPException(404, "not in stock")

    async def gone(self) -> None:
        raise HTTPException(410, "sold")

    async def crash(self) -> None:
        raise ZeroDivisionError("oops")

    async def text(self) -> Response:
        return Response("größe \u2713", media_type="text/plain")

    verdict: Any = None
    """What the verifier returns; None: its request and a reward."""

    async def verify(self, request: Request, body: BaseVerifyRequest) -> Any:
        self.note(request, "verify", body.model_dump(exclude_unset=True))
        if self.verdict is not None:
            return self.verdict
        return body.model_dump(exclude_unset=True) | {"reward": 1.0}

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {"own": len(tasks)}


class World:
    """An agent with a scripted model and an environment, in this process."""

    def __init__(self, script: Script, **settings: Any) -> None:
        servers: dict[str, HostedServer] = {}
        client = ServerClient(local_servers=servers)
        place = {"host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
        self.model = Model(
            config=BaseResponsesAPIModelConfig(name="model", **place),
            server_client=client,
            script=script,
        )
        self.environment = Environment(
            config=BaseResourcesServerConfig(name="tools", **place),
            server_client=client,
        )
        config = SimpleAgentConfig.model_validate(
            {
                "name": "agent",
                **place,
                "resources_server": {"type": "resources_servers", "name": "tools"},
                "model_server": {"type": "responses_api_models", "name": "model"},
                **settings,
            }
        )
        agent = SimpleAgent(config=config, server_client=client)
        self.servers = servers
        for name, server in (("model", self.model), ("tools", self.environment), ("agent", agent)):
            servers[name] = HostedServer(name, server.setup_webserver())
        self.client = client

    def post(self, path: str, body: Any, **options: Any) -> ClientResponse:
        return asyncio.run(self.client.post("agent", path, json=body, **options))

    def run(self, **row: Any) -> dict[str, Any]:
        response = self.post("/run", {"responses_create_params": {"input": "go"}, **row})
        assert response.status == 200, response._body
        rollout: dict[str, Any] = asyncio.run(response.json())
        return rollout

    @property
    def tool_calls(self) -> list[tuple[str, Any]]:
        return [call for call in self.environment.calls if call[0] not in ("seed_session", "verify")]


def after_tools(*items: Item) -> Script:
    """First these items, then a message."""
    return lambda request: (
        model_response(message("done")) if tool_outputs(request) else model_response(*items)
    )


def call(name: Any, arguments: Any = "{}", call_id: str = "c1") -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def test_text_input_becomes_one_user_message() -> None:
    world = World(lambda request: model_response(message("hi")))
    world.run()
    assert world.model.requests == [{"input": [{"role": "user", "content": "go"}]}]


def test_list_input_and_other_parameters_reach_the_model_unchanged() -> None:
    world = World(lambda request: model_response(message("hi")))
    params = {
        "input": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go", "x": 1}],
        "temperature": 0.25,
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}],
        "seed": 7,
        "of_another_version": {"a": None},
    }
    world.run(responses_create_params=params)
    assert world.model.requests == [params]


def test_rollout_calls_seed_model_tools_and_verifier_in_order() -> None:
    world = World(after_tools(function_call("add", a=1, b=2)))
    rollout = world.run(task=7)
    row = {"responses_create_params": {"input": "go"}, "task": 7}
    assert [name for name, _ in world.environment.calls] == ["seed_session", "add", "verify"]
    assert world.environment.calls[0] == ("seed_session", row)
    assert world.environment.calls[-1][1].items() >= row.items()
    assert rollout["reward"] == 1.0


def test_conversation_grows_in_order() -> None:
    turns = [
        [message("let me see"), function_call("add", call_id="c1", a=1)],
        [function_call("add", call_id="c2", a=2)],
        [message("3")],
    ]
    world = World(lambda request: model_response(*turns[len(tool_outputs(request))]))
    rollout = world.run()

    def answered(call_id: str, output: str) -> Item:
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    output = [*turns[0], answered("c1", "1"), *turns[1], answered("c2", "2"), *turns[2]]
    assert rollout["response"]["output"] == output
    user = {"role": "user", "content": "go"}
    assert [request["input"] for request in world.model.requests] == [
        [user],
        [user, *output[:3]],
        [user, *output[:5]],
    ]


def test_parallel_calls_are_all_made_in_the_models_order() -> None:
    calls = [function_call("add", call_id=f"c{number}", a=number) for number in range(4)]
    world = World(after_tools(*calls))
    output = world.run()["response"]["output"]
    assert world.tool_calls == [("add", {"a": number}) for number in range(4)]
    assert [(item["call_id"], item["output"]) for item in output[4:8]] == [
        (f"c{number}", str(number)) for number in range(4)
    ]


def test_incomplete_response_ends_the_episode_and_calls_no_tool() -> None:
    details = {"reason": "max_output_tokens"}
    world = World(lambda request: model_response(function_call("add", a=1), incomplete_details=details))
    rollout = world.run()
    assert world.tool_calls == []
    assert len(world.model.requests) == 1
    assert rollout["response"]["incomplete_details"] == details


def test_no_more_than_max_steps_calls_of_the_model() -> None:
    world = World(lambda request: model_response(function_call("add", a=1)), max_steps=3)
    output = world.run()["response"]["output"]
    assert len(world.model.requests) == 3
    assert len(world.tool_calls) == 2  # the output of the last call would not be used
    assert [item["type"] for item in output] == ["function_call", "function_call_output"] * 2 + [
        "function_call"
    ]


def test_rollout_says_that_max_steps_ended_it() -> None:
    world = World(lambda request: model_response(function_call("add", a=1)), max_steps=3)
    rollout = world.run(_ng_stopped_by="an earlier run")
    assert (rollout["_ng_stopped_by"], rollout["_ng_steps"]) == ("max_steps", 3)
    assert "incomplete_details" not in rollout["response"]
    done = World(after_tools(function_call("add", a=1)), max_steps=2).run(_ng_stopped_by="an earlier run")
    assert "_ng_stopped_by" not in done and done["_ng_steps"] == 2


def test_rollout_ends_after_100_steps_by_default() -> None:
    world = World(lambda request: model_response(function_call("add", a=1)))
    rollout = world.run()
    assert (rollout["_ng_stopped_by"], rollout["_ng_steps"], len(world.model.requests)) == (
        "max_steps",
        100,
        100,
    )


def counts(calls: int = 1, failed: int = 0, unknown: int = 0, invalid: int = 0) -> dict[str, int]:
    return {"calls": calls, "failed": failed, "unknown": unknown, "invalid": invalid}


@pytest.mark.parametrize("skip_verification", [False, True])
def test_tool_calls_are_counted_by_their_outcome(skip_verification: bool) -> None:
    calls = [
        *(call("add", '{"a": 1}'), call("add", '{"a": "x"}'), call("add", "{"), call("any", "[1]")),
        *(call("refuse"), call("gone"), call("crash"), call("text")),
        *(call("subtract"), call("verify"), call("../x"), call("")),
    ]
    rollout = World(after_tools(*calls), skip_verification=skip_verification).run()
    assert rollout["_ng_tools"] == {
        "add": counts(3, invalid=2),
        "any": counts(1, invalid=1),
        "refuse": counts(1, failed=1),  # a 404 that the tool chose
        "gone": counts(1, failed=1),
        "crash": counts(1, failed=1),
        "text": counts(1),
        "subtract": counts(1, unknown=1),
        "verify": counts(1, unknown=1),
        "../x": counts(1, unknown=1),
        "(no name)": counts(1, unknown=1),
    }
    assert rollout["_ng_steps"] == 2


def test_tool_missing_from_an_application_of_the_environments_own_is_unknown() -> None:
    world = World(after_tools(call("subtract")))
    plain = FastAPI()
    world.environment.setup_session_middleware(plain)
    plain.post("/seed_session")(world.environment.seed_session)
    plain.post("/verify")(world.environment.verify)
    world.servers["tools"] = HostedServer("tools", plain)
    assert world.run()["_ng_tools"] == {"subtract": counts(1, unknown=1)}


def test_counts_stay_small_whatever_names_a_model_invents() -> None:
    calls = [call(f"{number}" + "x" * 10_000) for number in range(200)]
    tools = World(after_tools(*calls)).run()["_ng_tools"]
    assert len(tools) <= 33 and max(map(len, tools)) <= 64
    assert sum(one["calls"] for one in tools.values()) == 200
    assert tools["(others)"] == counts(168, unknown=168)


def test_rollout_without_tools_has_empty_counts() -> None:
    rollout = World(lambda request: model_response(message("hi"))).run()
    assert (rollout["_ng_steps"], rollout["_ng_tools"]) == (1, {})


def test_max_steps_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        World(model_response, max_steps=0)


RESERVED = ["verify", "seed_session", "close_session", "aggregate_metrics", "run", "mcp"]
UNCALLABLE = ["../verify", "a/b", "/verify", "x?y", "verify?", "%2e%2e", "%76erify", "..", ".", "", "a\\b"]
UNCALLABLE += ["a#b", "a\nb"]


@pytest.mark.parametrize("name", RESERVED + UNCALLABLE)
def test_name_that_is_not_a_tool_is_not_called(name: str) -> None:
    assert is_reserved_tool_name(name)
    world = World(after_tools(call(name)))
    rollout = world.run()
    assert [called for called, _ in world.environment.calls] == ["seed_session", "verify"]
    assert rollout["response"]["output"][1]["output"] == f"There is no tool named {name!r}."


def test_model_gets_an_error_message_for_an_unknown_tool() -> None:
    world = World(after_tools(call("subtract")))
    output = world.run()["response"]["output"][1]["output"]
    assert json.loads(output)["detail"].startswith(
        "there is no tool named 'subtract'; the tools are: add, any"
    )


@pytest.mark.parametrize("arguments", ["", "{", "add 1", '{"a": }', "{'a': 1}", "[" * 3000])
def test_arguments_that_are_not_json_are_for_the_model_to_see(arguments: str) -> None:
    world = World(after_tools(call("any", arguments)))
    output = world.run()["response"]["output"][1]["output"]
    assert output.startswith("The arguments of this call are not JSON: ")
    assert world.tool_calls == []


@pytest.mark.parametrize("arguments", ["[1, 2]", "7", '"text"', "true"])
def test_arguments_that_are_not_an_object_reach_the_tool_unchanged(arguments: str) -> None:
    world = World(after_tools(call("any", arguments)))
    world.run()
    assert world.tool_calls == [("any", json.loads(arguments))]


def test_tool_responds_to_arguments_of_the_wrong_type() -> None:
    world = World(after_tools(call("add", "[1]"), call("add", "null"), call("add", '{"a": "x"}')))
    outputs = [item["output"] for item in world.run()["response"]["output"][3:6]]
    assert all(json.loads(output)["detail"] for output in outputs)
    assert world.tool_calls == []


def test_numbers_and_letters_of_arguments_reach_the_tool_exactly() -> None:
    arguments = {"big": 2**80, "float": 1.0, "text": "größe ✓", "null": None, "deep": [{"a": [[]]}]}
    world = World(after_tools(call("any", json.dumps(arguments))))
    world.run()
    ((_, got),) = world.tool_calls
    assert json.dumps(got) == json.dumps(arguments)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call"},
        {"type": "function_call", "call_id": "c1"},
        {"type": "function_call", "call_id": "c1", "name": "add"},
        {"type": "function_call", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "c1", "name": None, "arguments": None},
        {"type": "function_call", "call_id": "c1", "name": "any", "arguments": {"a": 1}},
        {"type": "function_call", "call_id": "c1", "name": {"a": 1}, "arguments": "{}"},
    ],
)
def test_model_gets_an_error_message_for_a_malformed_call_and_continues(item: Item) -> None:
    world = World(after_tools(item), skip_verification=True)
    output = world.run()["response"]["output"]
    assert output[0] == item
    assert output[1]["type"] == "function_call_output"
    assert isinstance(output[1]["output"], str) and output[1]["output"]
    assert output[2] == message("done")


def test_refusal_of_a_tool_is_shown_to_the_model() -> None:
    world = World(after_tools(call("refuse")))
    assert world.run()["response"]["output"][1]["output"] == '{"detail":"not in stock"}'


def test_crash_of_a_tool_is_shown_to_the_model() -> None:
    world = World(after_tools(call("crash")))
    assert world.run()["response"]["output"][1]["output"] == "\"ZeroDivisionError('oops')\""


def test_tool_output_that_is_not_json_is_passed_on_unchanged() -> None:
    world = World(after_tools(call("text")))
    assert world.run()["response"]["output"][1]["output"] == "größe ✓"


def test_final_response_is_the_models_last_with_the_usage_of_all() -> None:
    def script(request: dict[str, Any]) -> dict[str, Any]:
        number = len(tool_outputs(request))
        usage = {"input_tokens": 10**number, "output_tokens": 1, "total_tokens": 10**number + 1, "cost": 0.5}
        items = [message("done")] if number == 2 else [function_call("add", a=1)]
        return {
            "id": f"r{number}",
            "output": items,
            "usage": usage,
            "model": f"m{number}",
            "of_vendor": number,
        }

    response = World(script).run()["response"]
    assert (response["id"], response["model"], response["of_vendor"]) == ("r2", "m2", 2)
    assert (
        response["usage"].items()
        >= {
            "input_tokens": 111,
            "output_tokens": 3,
            "total_tokens": 114,
            "cost": 1.5,
        }.items()
    )


def test_model_without_token_counts_is_accepted() -> None:
    world = World(lambda request: {"output": [message("hi")]})
    assert world.run()["response"]["usage"] is None


ROW = {
    "text": "größe 你好 🎈 \u2028",
    "big": 2**80,
    "negative": -(2**70),
    "float": 1.0,
    "small": 1e-300,
    "third": 0.1,
    "null": None,
    "nested": {"a": [None, {"b": []}, {}], "": False},
    "_ng_task_index": 3,
    "agent_ref": {"name": "agent"},
}


@pytest.mark.parametrize("skip_verification", [False, True])
def test_fields_of_the_row_are_untouched(skip_verification: bool) -> None:
    world = World(lambda request: model_response(message("hi")), skip_verification=skip_verification)
    rollout = world.run(**ROW)
    assert json.dumps({key: rollout[key] for key in ROW}) == json.dumps(ROW)
    assert rollout["responses_create_params"] == {"input": "go"}


def test_response_of_the_verifier_is_returned_unchanged() -> None:
    world = World(lambda request: model_response(message("hi")))
    response = world.post("/run", {"responses_create_params": {"input": "go"}, "x": 1})
    verified = dict(world.environment.calls[-1][1]) | {"reward": 1.0}
    assert asyncio.run(response.json()) == verified


@pytest.mark.parametrize(
    "transcript", [{}, {"response": None, "responses_create_params": None}, {"response": "42"}]
)
def test_input_and_transcript_are_kept_whatever_the_verifier_returns(transcript: Any) -> None:
    world = World(after_tools(function_call("add", a=1)))
    verdict = {"reward": 0.85, "accuracy": 1.0, "text": "of the verifier", "bigger": 2**81}
    world.environment.verdict = verdict | transcript
    rollout = world.run(**ROW)
    output = [item["type"] for item in rollout.pop("response")["output"]]
    assert output == ["function_call", "function_call_output", "message"]
    assert rollout.pop("_ng_steps") == 2 and rollout.pop("_ng_tools")
    assert rollout == {**ROW, "responses_create_params": {"input": "go"}, **verdict}


def test_fields_that_a_verifier_does_not_declare_are_kept() -> None:
    class Declaring(Environment):
        async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
            return BaseVerifyResponse.model_validate(dict(body) | {"reward": 0.85})

    world = World(lambda request: model_response(message("hi")))
    declaring = Declaring(config=world.environment.config, server_client=world.client)
    world.servers["tools"] = HostedServer("tools", declaring.setup_webserver())
    rollout = world.run(**ROW)
    assert {key: rollout[key] for key in (*ROW, "reward")} == {**ROW, "reward": 0.85}
    assert rollout["response"]["output"] == [message("hi")]


def test_reward_of_an_earlier_rollout_in_the_row_is_not_taken_for_a_new_one() -> None:
    world = World(lambda request: model_response(message("hi")))
    world.environment.verdict = {"accuracy": 1.0}
    assert "reward" not in world.run(reward=1.0, _ng_failure_class="judge_failed")


def test_verifiers_number_that_is_not_finite_reaches_the_caller() -> None:
    world = World(lambda request: model_response(message("hi")))
    world.environment.verdict = Response('{"reward": 1.0, "score": NaN}', media_type="application/json")
    rollout = world.run(x=1)
    assert math.isnan(rollout["score"]) and rollout["x"] == 1 and rollout["response"]["output"]


@pytest.mark.parametrize("body", ["[1]", '"text"', "", "{", "<html>"])
def test_response_of_the_verifier_that_is_no_object_is_passed_on(body: str) -> None:
    world = World(lambda request: model_response(message("hi")))
    world.environment.verdict = Response(body, media_type="application/json")
    response = world.post("/run", {"responses_create_params": {"input": "go"}})
    assert (response.status, response.body) == (200, body.encode())


def test_verification_can_be_skipped() -> None:
    world = World(
        lambda request: model_response(message("hi")), skip_verification=True, skip_verification_reward=0.5
    )
    rollout = world.run(x=1)
    assert (rollout["reward"], rollout["verification_skipped"], rollout["x"]) == (0.5, True, 1)
    assert rollout["response"]["output"] == [message("hi")]
    assert [name for name, _ in world.environment.calls] == ["seed_session"]


def test_rollout_has_one_session_on_every_server() -> None:
    world = World(after_tools(function_call("add", a=1), function_call("add", a=2)))
    world.run()
    assert len(world.environment.sessions) == 4 and len(set(world.environment.sessions)) == 1
    assert len(world.model.sessions) == 2 and len(set(world.model.sessions)) == 1


def test_each_rollout_has_its_own_session() -> None:
    world = World(lambda request: model_response(message("hi")))
    world.run()
    world.run()
    assert len(set(world.environment.sessions)) == len(set(world.model.sessions)) == 2


def test_caller_of_responses_gets_the_session_cookies() -> None:
    world = World(after_tools(function_call("add", a=1)))
    first = world.post("/v1/responses", {"input": "go"})
    assert first.status == 200
    world.post("/v1/responses", {"input": "on"}, cookies=first.cookies)
    assert len(set(world.environment.sessions)) == len(set(world.model.sessions)) == 1


def test_responses_returns_the_whole_episode() -> None:
    world = World(after_tools(function_call("add", a=1)))
    response = asyncio.run(world.post("/v1/responses", {"input": "go"}).json())
    assert [item["type"] for item in response["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]
    assert response["usage"]["total_tokens"] == 30
    assert [name for name, _ in world.environment.calls] == ["add"]


def test_metrics_are_the_environments() -> None:
    world = World(lambda request: model_response(message("hi")))
    rollouts = [{"reward": 1.0, "_ng_task_index": 0}, {"reward": 0.0, "_ng_task_index": 1}]
    response = world.post("/aggregate_metrics", {"verify_responses": rollouts})
    metrics = asyncio.run(response.json())
    assert (metrics["agent_metrics"]["mean/reward"], metrics["agent_metrics"]["own"]) == (0.5, 2)


def test_failed_seeding_ends_the_rollout() -> None:
    class Unseedable(Environment):
        async def seed_session(self, body: dict[str, Any]) -> dict[str, Any]:
            raise HTTPException(503, "full")

    world = World(lambda request: model_response(message("hi")))
    servers = world.client._local_servers
    unseedable = Unseedable(config=world.environment.config, server_client=world.client)
    servers["tools"] = HostedServer("tools", unseedable.setup_webserver())
    response = world.post("/run", {"responses_create_params": {"input": "go"}})
    assert response.status == 500
    assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
    assert world.model.requests == []


def test_session_that_ended_during_the_episode_is_an_infrastructure_failure_not_a_tool_output() -> None:
    def script(request: dict[str, Any]) -> dict[str, Any]:
        for session_id in world.environment.sessions:
            world.servers["tools"].sessions.start_ending(session_id)
        return model_response(function_call("any"))

    world = World(script, max_steps=5)
    response = world.post("/run", {"responses_create_params": {"input": "go"}})
    assert (response.status, len(world.model.requests)) == (500, 1)
    assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
    assert response.headers["x-nemo-gym-failure-status"] == "410"


def test_model_reads_a_410_that_a_tool_chose() -> None:
    world = World(after_tools(function_call("gone")))
    world.run()
    assert tool_outputs(world.model.requests[1]) == ['{"detail":"sold"}']
