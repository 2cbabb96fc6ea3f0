import asyncio
import json
import logging
import socket
from typing import Any

import pytest
import uvicorn
from aiohttp import web

from nemo_gym.http import request
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.vllm_model.tests.model_under_test import (
    CALL,
    WEATHER,
    Gym,
    client_of,
    new_model,
    text_of,
    texts_of,
    user,
)
from tests.support.vllm_stand_in import VLLMStandIn, error


def test_responses_use_chat_completions_of_the_configured_model() -> None:
    with VLLMStandIn() as vllm:
        response = Gym(vllm).respond(
            {"input": "x", "model": "another", "instructions": "be brief", "seed": 3}
        )
    (sent,) = vllm.requests
    assert sent.path == "/v1/chat/completions"
    assert sent.body == {
        "messages": [{"role": "system", "content": "be brief"}, user()],
        "model": "mine",
        "seed": 3,
    }
    assert texts_of(response) == [("message", "hi")]
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] == 3
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + 3


def test_key_and_default_headers_are_sent() -> None:
    with VLLMStandIn() as vllm:
        Gym(vllm, default_headers={"X-Team": "gym"}).respond({"input": "x"})
    assert vllm.requests[0].headers["Authorization"] == "Bearer key-of-mine"
    assert vllm.requests[0].headers["X-Team"] == "gym"


def test_sampling_overrides_replace_request_fields_and_both_replace_extra_body() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(
            vllm,
            sampling_overrides={"temperature": 0.5, "top_k": 20},
            extra_body={"top_k": 9, "top_p": 0.8, "max_tokens": 9, "vendor": {"a": [1]}, "model": "other"},
        )
        gym.respond({"input": "x", "temperature": 1.0, "top_p": 0.1, "max_output_tokens": 7, "seed": 4})
        gym.chat({"messages": [user()], "temperature": 1.0})
    first, second = vllm.bodies()
    for body in (first, second):
        assert (body["temperature"], body["top_k"], body["vendor"]) == (0.5, 20, {"a": [1]})
        assert body["model"] == "mine"
    assert (first["top_p"], first["seed"], first["max_completion_tokens"]) == (0.1, 4, 7)
    assert (second["top_p"], second["max_tokens"]) == (0.8, 9) and "max_tokens" not in first


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_token_limit_can_be_overridden_under_any_of_its_names(name: str) -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, sampling_overrides={name: 2})
        assert gym.respond({"input": "x", "max_output_tokens": 7})["status"] == "incomplete"
        gym.chat({"messages": [user()], "max_tokens": 7})
    for body in vllm.bodies():
        assert {key: value for key, value in body.items() if "max" in key} == {"max_completion_tokens": 2}


def test_template_arguments_of_a_request_take_precedence_over_configured_ones() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, chat_template_kwargs={"enable_thinking": True, "style": "short"})
        gym.respond({"input": "x", "chat_template_kwargs": {"enable_thinking": False}})
        gym.respond({"input": "x"})
    first, second = vllm.bodies()
    assert first["chat_template_kwargs"] == {"enable_thinking": False, "style": "short"}
    assert second["chat_template_kwargs"] == {"enable_thinking": True, "style": "short"}


def test_metadata_of_a_row_is_unpacked_into_the_request() -> None:
    extra = {"top_k": 7, "temperature": 0.25, "max_tokens": 3, "chat_template_kwargs": {"style": "long"}}
    metadata = {
        "extra_body": json.dumps(extra),
        "chat_template_kwargs": '{"enable_thinking": false}',
        "user_id": "u1",
    }
    with VLLMStandIn() as vllm:
        gym = Gym(
            vllm,
            chat_template_kwargs={"enable_thinking": True, "style": "short", "x": 1},
            extra_body={"top_k": 20, "min_p": 0.1},
        )
        gym.respond({"input": "x", "temperature": 1.0, "max_output_tokens": 9, "metadata": metadata})
        del metadata["user_id"]
        gym.chat({"messages": [user()], "metadata": metadata})
    first, second = vllm.bodies()
    assert first["metadata"] == {"user_id": "u1"} and "metadata" not in second
    for body in (first, second):
        assert (body["top_k"], body["min_p"], body["temperature"]) == (7, 0.1, 0.25)
        assert body["max_tokens"] == 3 and "max_completion_tokens" not in body and "extra_body" not in body
        assert body["chat_template_kwargs"] == {"enable_thinking": False, "style": "long", "x": 1}


@pytest.mark.parametrize("field", ["extra_body", "chat_template_kwargs"])
@pytest.mark.parametrize("text", ["{top_k: 7}", "", "[1]", "7"])
def test_metadata_that_is_not_a_json_object_is_rejected_with_its_name(field: str, text: str) -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm)
        for body, path in (
            ({"input": "x"}, "/v1/responses"),
            ({"messages": [user()]}, "/v1/chat/completions"),
        ):
            response = gym.post({**body, "metadata": {field: text}}, path)
            assert response.status == 422 and f"metadata.{field}" in text_of(response)
            assert response.headers["x-nemo-gym-failure-kind"] == "data"
    assert vllm.requests == []


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
def test_empty_tools_are_not_sent(choice: dict[str, str]) -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm)
        gym.respond({"input": "x", "tools": [], **choice})
        gym.chat({"messages": [user()], "tools": [], **choice})
    for body in vllm.bodies():
        assert not {"tools", "tool_choice"} & set(body)


def test_tools_are_called_and_their_outputs_are_sent_back() -> None:
    def write(prompt: str) -> str:
        return "It rains." if "rain" in prompt else f"Let me see.{CALL}"

    with VLLMStandIn(write) as vllm:
        gym = Gym(vllm)
        first = gym.respond({"input": [user("Oslo?")], "tools": [WEATHER]})
        assert texts_of(first) == [("message", "Let me see."), ("function_call", 'weather {"city": "Oslo"}')]
        call_id = first["output"][-1]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "rain"}
        items = [user("Oslo?"), *first["output"], output]
        assert texts_of(gym.respond({"input": items, "tools": [WEATHER]})) == [("message", "It rains.")]
    _, call, output = vllm.bodies()[1]["messages"]
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert call["content"] == "Let me see."
    assert (output["role"], output["tool_call_id"], output["content"]) == ("tool", call_id, "rain")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_parsed_reasoning_becomes_an_item_and_is_sent_back_under_both_names(field: str) -> None:
    with VLLMStandIn(lambda prompt: "<think>hm</think>yes", reasoning_field=field) as vllm:
        first, _ = Gym(vllm, uses_reasoning_parser=True).converse("a", "b")
    assert texts_of(first) == [("reasoning", "hm"), ("message", "yes")]
    message = vllm.bodies()[1]["messages"][1]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("yes", "hm", "hm")


def test_reasoning_in_tags_becomes_an_item_and_is_sent_back_in_tags() -> None:
    with VLLMStandIn(lambda prompt: "<think>hm</think>yes") as vllm:
        first, _ = Gym(vllm).converse("a", "b")
    assert texts_of(first) == [("reasoning", "hm"), ("message", "yes")]
    message = vllm.bodies()[1]["messages"][1]
    assert message["content"] == "<think>hm</think>yes"
    assert not {"reasoning", "reasoning_content"} & set(message)


def test_unknown_fields_of_chat_requests_and_completions_are_passed_on() -> None:
    def alter(completion: dict[str, Any]) -> None:
        completion["vendor"] = completion["choices"][0]["vendor"] = 1

    with VLLMStandIn(alter=alter) as vllm:
        body = {"messages": [user()], "seed": 3, "vendor": {"b": None}}
        response = Gym(vllm).chat({**body, "model": "another"})
    assert vllm.bodies() == [{**body, "model": "mine"}]
    assert (response["vendor"], response["choices"][0]["vendor"]) == (1, 1)
    assert response["choices"][0]["message"]["content"] == "hi"


def test_token_ids_of_a_history_are_sent_only_with_token_information() -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    assistant = {"role": "assistant", "content": "hm"}
    messages = [user(), {**assistant, **tokens, "generation_log_probs_mode": "raw_logprobs"}, user()]
    with VLLMStandIn() as vllm:
        Gym(vllm).chat({"messages": messages})
    assert vllm.bodies()[0]["messages"] == [user(), assistant, user()]


def test_missing_usage_counts_as_zero_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with VLLMStandIn(alter=lambda completion: completion.pop("usage")) as vllm:
        gym = Gym(vllm)
        usage = gym.respond({"input": "x"})["usage"]
        chat = gym.chat({"messages": [user()]})["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (0, 0, 0)
    assert (chat["prompt_tokens"], chat["completion_tokens"], chat["total_tokens"]) == (0, 0, 0)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "policy_model: the endpoint returns no usage; its token counts are recorded as zero"
    ]


LONG = (
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8500 in the "
    "messages, 500 in the completion). Please reduce the length of the messages or completion."
)
LONG_NEWER = (
    "You passed 1015 input tokens and requested 10 output tokens. However, the model's context length is "
    "only 1024 tokens, resulting in a maximum input length of 1014 tokens. Please reduce the length of the "
    "input prompt. (parameter=input_tokens, value=1015)"
)
LLAMA = {
    "code": 400,
    "message": "request (3000 tokens) exceeds the available context size (1024 tokens), try increasing it",
    "type": "exceed_context_size_error",
}


@pytest.mark.parametrize(
    "error_response",
    [
        lambda: error(LONG, nested=False),
        lambda: error(LONG),
        lambda: error(LONG_NEWER),
        lambda: error("The decoder prompt (length 9000) is longer than the maximum model length of 8192."),
        lambda: error("max_tokens must be at least 1, got -186.", nested=False),
        lambda: web.json_response({"error": LLAMA}, status=400),
        lambda: web.json_response({"error": {**LLAMA, "message": "no"}}, status=400),
    ],
)
@pytest.mark.parametrize("with_tokens", [False, True])
def test_too_long_prompt_gives_an_incomplete_response(error_response: Any, with_tokens: bool) -> None:
    with VLLMStandIn(intercept=lambda path, body: error_response()) as vllm:
        gym = Gym(vllm, return_token_id_information=with_tokens)
        response = gym.respond({"input": "x"})
        chat = gym.chat({"messages": [user()]})
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert texts_of(response) == [("message", "")]
    assert "generation_token_ids" not in response["output"][0]
    (choice,) = chat["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert response["usage"]["total_tokens"] == chat["usage"]["total_tokens"] == 0


def test_first_too_long_prompt_is_logged_with_the_message_of_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with VLLMStandIn(max_model_len=20) as vllm:
        gym = Gym(vllm)
        for _ in range(3):
            assert gym.respond({"input": "word " * 50})["status"] == "incomplete"
    (record,) = caplog.records
    assert "maximum context length is 20 tokens" in record.getMessage()
    assert gym.model.notices.counts["too_long"] == 3


@pytest.mark.parametrize(
    "error_response",
    [
        lambda: error("temperature must be non-negative, got -1.0."),
        lambda: error("x" * 400 + "maximum context length"),
        lambda: web.Response(status=400, text="maximum context length"),
        lambda: web.json_response(["maximum context length"], status=400),
        lambda: error(LONG, 413),
    ],
)
def test_other_errors_of_the_engine_are_passed_on_unchanged(error_response: Any) -> None:
    with VLLMStandIn(intercept=lambda path, body: error_response()) as vllm:
        response = Gym(vllm).post({"input": "x"})
    assert (response.status, response.headers["x-nemo-gym-failure-kind"]) == (error_response().status, "data")
    assert text_of(response) == error_response().text


def test_request_without_a_chat_equivalent_is_rejected_with_the_reason() -> None:
    with VLLMStandIn() as vllm:
        response = Gym(vllm).post({"input": "x", "previous_response_id": "resp_1"})
    assert (response.status, vllm.requests) == (422, [])
    assert "previous_response_id" in text_of(response)


def test_completion_without_choices_is_a_failure_of_the_endpoint() -> None:
    with VLLMStandIn(intercept=lambda path, body: web.json_response({"choices": []})) as vllm:
        response = Gym(vllm).post({"input": "x"})
    assert (response.status, response.headers["x-nemo-gym-failure-kind"]) == (502, "infrastructure")
    assert "choices" in text_of(response)


def test_failed_call_is_retried() -> None:
    failures = iter([web.Response(status=503, headers={"Retry-After": "0.01"})])
    with VLLMStandIn(intercept=lambda path, body: next(failures, None)) as vllm:
        assert Gym(vllm).post({"input": "x"}).ok
    assert len(vllm.requests) == 2


def test_concurrent_calls_stay_within_the_limit() -> None:
    async def run() -> list[int]:
        inside: list[int] = []
        now = 0

        async def respond(request: web.Request) -> web.Response:
            nonlocal now
            now += 1
            inside.append(now)
            for _ in range(20):  # lets any other request that is not limited arrive
                await asyncio.sleep(0)
            now -= 1
            message = {"role": "assistant", "content": "hi"}
            return web.json_response(
                {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}}
            )

        app = web.Application()
        app.router.add_post("/v1/chat/completions", respond)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        client = client_of(new_model(base_url=url, max_concurrent_requests=2))
        posts = [client.post("policy_model", "/v1/responses", json={"input": "x"}) for _ in range(8)]
        assert all(response.ok for response in await asyncio.gather(*posts))
        await runner.cleanup()
        return inside

    assert max(asyncio.run(run())) == 2


async def replicas_of_sessions(url: str, counts: list[int]) -> None:
    """Each number is a session that makes this many calls; the text of a call names its session."""
    for name, calls in enumerate(counts):
        cookies: Any = None
        for _ in range(calls):
            body = {"input": f"session {name}"}
            response = await request("POST", f"{url}/v1/responses", json=body, cookies=cookies)
            assert response.ok
            cookies = response.cookies


def test_session_stays_with_one_replica_over_http() -> None:
    async def run(server: HostedServer) -> None:
        listening = socket.create_server(("127.0.0.1", 0))  # who calls before it is served, waits
        served = uvicorn.Server(uvicorn.Config(server, log_level="error", lifespan="off"))
        serving = asyncio.create_task(served.serve([listening]))
        await replicas_of_sessions(f"http://127.0.0.1:{listening.getsockname()[1]}", [3, 2, 2, 3])
        served.should_exit = True
        await serving

    with VLLMStandIn() as one, VLLMStandIn() as two:
        model = new_model(base_url=[one.base_url, two.base_url])
        asyncio.run(run(HostedServer("policy_model", model.setup_webserver())))
    sessions = [[body["messages"][0]["content"] for body in vllm.bodies()] for vllm in (one, two)]
    assert sessions == [["session 0"] * 3 + ["session 2"] * 2, ["session 1"] * 2 + ["session 3"] * 3]


def test_session_stays_with_one_replica_in_process() -> None:
    async def run(gym: Gym) -> None:
        client = client_of(gym.model)
        for name in range(4):
            cookies: Any = None
            for _ in range(2):
                body = {"input": f"session {name}"}
                response = await client.post("policy_model", "/v1/responses", json=body, cookies=cookies)
                cookies = response.cookies

    with VLLMStandIn() as one, VLLMStandIn() as two:
        asyncio.run(run(Gym(one, two)))
    sessions = [[body["messages"][0]["content"] for body in vllm.bodies()] for vllm in (one, two)]
    assert sessions == [["session 0"] * 2 + ["session 2"] * 2, ["session 1"] * 2 + ["session 3"] * 2]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"base_url": []}, "set at least one address"),
        ({"base_url": ""}, "set at least one address"),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests"),
        ({"token_id_replay": "completions", "eos_token_id": 2}, "needs return_token_id_information: true"),
        (
            {"token_id_replay": "completions", "return_token_id_information": True},
            "needs eos_token_id or eos_token",
        ),
    ],
)
def test_invalid_configuration_is_rejected(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        new_model(**settings)


def test_api_key_is_not_in_the_repr() -> None:
    assert "key-of-mine" not in repr(new_model())
