"""The server returns recorded responses and faults, in process and over HTTP alike."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config_types import ConfigError
from nemo_gym.http import ServerUnreachableError
from nemo_gym.openai_utils import NeMoGymAsyncOpenAI, NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.server_utils import ClientResponse, ServerClient
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from responses_api_models.replay_model.app import ReplayModelConfig
from responses_api_models.replay_model.faults import Fault, Hanging
from responses_api_models.replay_model.tests.rollouts import (
    PLACE,
    USAGE,
    Item,
    called,
    hosted,
    recorded,
    said,
    thought,
    tokens,
    tool_output,
    user,
    write,
)
from tests.gym.servers.serving import local_client, served, served_config
from tests.support.virtual_time import run_in_virtual_time

GO = {"input": [user("go")]}
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    output = [thought("hm"), called("a", x=1) | tokens(4, 3), tool_output("1"), said("done", **tokens(9, 2))]
    return write(tmp_path, [recorded("go", *output)])


def over_both(path: Path, **settings: Any) -> Iterator[ServerClient]:
    yield local_client(policy_model=hosted(path, **settings))
    with served(hosted(path, **settings)) as url:
        yield ServerClient(global_config_dict=served_config("policy_model", url))


def post(client: ServerClient, body: Any, path: str = RESPONSES, **options: Any) -> ClientResponse:
    return asyncio.run(client.post("policy_model", path, json=body, **options))


def data(response: ClientResponse) -> Any:
    return asyncio.run(response.json())


def test_recorded_responses_are_the_same_over_both_transports(path: Path) -> None:
    for client in over_both(path):
        first = data(post(client, GO))
        assert first["output"] == [thought("hm"), called("a", x=1) | tokens(4, 3)]
        second = data(post(client, {"input": [*GO["input"], *first["output"], tool_output("2")], "seed": 3}))
        assert second["output"] == [said("done", **tokens(9, 2))]
        assert first["usage"]["input_tokens"] + second["usage"]["input_tokens"] == USAGE["input_tokens"]
        NeMoGymResponse.model_validate(first)


def test_chat_is_the_same_conversation(path: Path) -> None:
    client = local_client(policy_model=hosted(path))
    messages: list[Item] = [{"role": "user", "content": "go"}]
    first = data(post(client, {"messages": messages, "model": "m"}, CHAT))
    message = first["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "a", "arguments": '{"x":1}'}
    assert (message["reasoning_content"], message["generation_token_ids"]) == ("hm", [0, 1, 2])
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    messages += [message, {"role": "tool", "tool_call_id": "call_0", "content": "1"}]
    second = data(post(client, {"messages": messages}, CHAT))
    assert second["choices"][0]["message"]["content"] == "done"
    NeMoGymChatCompletion.model_validate(second)
    # A client may leave out fields that it does not know.
    bare = {"role": "assistant", "content": None, "tool_calls": message["tool_calls"]}
    again = data(post(client, {"messages": [messages[0], bare, messages[-1]]}, CHAT))
    assert again["choices"] == second["choices"]


def test_chat_can_have_reasoning_in_its_text(path: Path) -> None:
    client = local_client(policy_model=hosted(path, uses_reasoning_parser=False))
    first = data(post(client, {"messages": [{"role": "user", "content": "go"}]}, CHAT))
    message = first["choices"][0]["message"]
    assert message["content"] == "<think>hm</think>"
    history = [
        {"role": "user", "content": "go"},
        message,
        {"role": "tool", "tool_call_id": "call_0", "content": "1"},
    ]
    second = data(post(client, {"messages": history}, CHAT))
    assert second["choices"][0]["message"]["content"] == "done"


def test_malformed_chat_request_is_rejected(path: Path) -> None:
    response = post(local_client(policy_model=hosted(path)), {"messages": [], "n": 2}, CHAT)
    assert response.status == 400


def test_unknown_prompt_is_a_data_failure(path: Path) -> None:
    for client in over_both(path):
        response = post(client, {"input": "stop"})
        assert response.status == 404
        assert "has the prompt 'stop'; replay the recorded input" in data(response)["detail"]
        assert response.headers["x-nemo-gym-failure-kind"] == "data"


def test_conversation_longer_than_the_recorded_one_is_rejected_or_ended(path: Path) -> None:
    history = [user("go"), called("a", x=1), tool_output("1"), said("done"), user("more")]
    response = post(local_client(policy_model=hosted(path)), {"input": history})
    assert response.status == 404
    assert (
        data(response)["detail"]
        == "rollout 0:0 was recorded with 2 model calls, and this is a further one; limit the agent's steps, "
        "or set when_unknown: any"
    )
    lenient = data(post(local_client(policy_model=hosted(path, when_unknown="any")), {"input": history}))
    assert lenient["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("fault", ["rate_limited", "server_error"])
def test_faults_without_a_response_are_infrastructure_failures(path: Path, fault: str) -> None:
    for client in over_both(path, faults={fault: 1.0, "retry_after_s": 2.5}):
        response = post(client, GO)
        assert response.status == (429 if fault == "rate_limited" else 500)
        assert response.headers.get("Retry-After") == ("2.5" if fault == "rate_limited" else None)
        assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
        assert "injected fault" in asyncio.run(response.text())


def test_disconnect_leaves_the_caller_without_a_response(path: Path) -> None:
    for client in over_both(path, faults={"disconnect": 1.0}):
        with pytest.raises(ServerUnreachableError, match=r"was cut off|payload is not completed"):
            post(client, GO)


def test_garbage_is_a_response_that_is_not_json(path: Path) -> None:
    for client in over_both(path, faults={"garbage_json": 1.0}):
        response = post(client, GO)
        assert response.status == 200
        with pytest.raises(ValueError):
            data(response)


@pytest.mark.parametrize("route", [RESPONSES, CHAT])
def test_empty_output_is_a_valid_response(path: Path, route: str) -> None:
    client = local_client(policy_model=hosted(path, faults={"empty_output": 1.0}))
    response = data(post(client, {**GO, "messages": [{"role": "user", "content": "go"}]}, route))
    if route == RESPONSES:
        assert NeMoGymResponse.model_validate(response).output == []
    else:
        assert not NeMoGymChatCompletion.model_validate(response).choices[0].message.content


def test_nan_among_the_log_probs_is_null_on_the_wire(path: Path) -> None:
    for client in over_both(path, faults={"nan_log_probs": 1.0}):
        assert data(post(client, GO))["output"][-1]["generation_log_probs"] == [None, -0.5, -0.5]


def test_hang_ends_when_the_caller_times_out(path: Path) -> None:
    async def time_out(client: ServerClient) -> None:
        with pytest.raises(ServerUnreachableError, match=r"no response to POST /v1/responses within 0.05 s"):
            await client.post("policy_model", RESPONSES, json=GO, timeout=0.05)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others or not (await asyncio.wait(others, timeout=30))[1]

    for client in over_both(path, faults={"hang": 1.0}):
        asyncio.run(time_out(client))


def test_hang_over_http_ends_with_its_connection() -> None:
    received = [{"type": "http.request"}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return received.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Hanging()({"type": "http"}, receive, send))
    assert (received, sent) == ([], [])


def test_responses_take_the_configured_time(tmp_path: Path) -> None:
    def took_s(**settings: Any) -> float:
        path = write(tmp_path, [recorded("go", said("hi"), created_at=10, completed_at=10.1)])
        client = local_client(policy_model=hosted(path, **settings))
        response, seconds = run_in_virtual_time(client.post("policy_model", RESPONSES, json=GO))
        assert response.ok
        return seconds

    assert took_s() == 0
    assert took_s(latency_s=0.1) == pytest.approx(0.1)
    assert took_s(tokens_per_s=1000) == pytest.approx(0.05)  # fifty tokens
    assert took_s(recorded_latency=True) == pytest.approx(0.1)
    assert took_s(recorded_latency=True, latency_scale=0.0) == 0
    assert took_s(faults={"slow": 1.0, "slow_s": 0.1}) == pytest.approx(0.1)


def test_recorded_latency_without_recorded_times_is_rejected(path: Path) -> None:
    message = (
        r"recorded.jsonl:1: the response has no created_at and completed_at, .* set latency_s or tokens_per_s"
    )
    with pytest.raises(ConfigError, match=message):
        hosted(path, recorded_latency=True)


def test_relative_path_is_looked_up_in_the_working_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    hosted(Path("recorded.jsonl"))
    with pytest.raises(
        ConfigError, match=r"rollouts_fpath: missing.jsonl not found \(looked for .*set it to"
    ):
        hosted(Path("missing.jsonl"))


@pytest.mark.parametrize("settings", [{"when_unknown": "cycle"}, {"latency_s": -1}, {"tokens_per_s": 0}])
def test_invalid_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        ReplayModelConfig.model_validate({**PLACE, "rollouts_fpath": "x", **settings})


def in_front_of(url: str) -> ServerClient:
    """`openai_model` with replay_model as its endpoint."""
    settings = {"openai_base_url": f"{url}/v1", "openai_api_key": "none", "openai_model": "m"}
    config = OpenAIModelConfig.model_validate({**PLACE, **settings})
    model = OpenAIModel(config=config, server_client=ServerClient())
    return local_client(policy_model=HostedServer("policy_model", model.setup_webserver()))


def test_another_model_server_can_use_it_as_its_endpoint(path: Path) -> None:
    with served(hosted(path)) as url:
        client = in_front_of(url)
        first = data(post(client, GO))
        second = data(post(client, {"input": [*GO["input"], *first["output"], tool_output("1")]}))
        chat = data(post(client, {"messages": [{"role": "user", "content": "go"}]}, CHAT))
    assert second["output"] == [said("done", status="completed", **tokens(9, 2))]
    assert chat["choices"][0]["finish_reason"] == "tool_calls"


def test_retries_of_a_model_server_in_front_overcome_the_faults(tmp_path: Path) -> None:
    count = 60
    path = write(tmp_path, [recorded(f"go {n}", said(str(n))) for n in range(count)])
    faults = {"rate_limited": 0.1, "retry_after_s": 0.1, "server_error": 0.05, "disconnect": 0.05}

    async def post_all(client: ServerClient) -> list[ClientResponse]:
        calls = (client.post("policy_model", RESPONSES, json={"input": f"go {n}"}) for n in range(count))
        return await asyncio.gather(*calls)

    with served(hosted(path, faults=faults)) as url:
        responses = asyncio.run(post_all(in_front_of(url)))
        plain = NeMoGymAsyncOpenAI(f"{url}/v1", "none", internal=True)

        async def fails(n: int) -> bool:
            try:
                return not await plain.create_response(input=f"go {n}")
            except Exception:  # of any kind
                return True

        async def failed() -> int:
            return sum(await asyncio.gather(*map(fails, range(count))))

        assert 0 < asyncio.run(failed()) < count / 2  # without retries
    assert [response.status for response in responses] == [200] * count
    texts = [data(response)["output"][0]["content"][0]["text"] for response in responses]
    assert texts == [str(n) for n in range(count)]


def test_the_same_requests_get_faults_in_every_run(tmp_path: Path) -> None:
    path = write(tmp_path, [recorded(f"go {n}", said(str(n))) for n in range(50)])
    rates = {fault.value: 0.1 for fault in Fault if fault not in (Fault.HANG, Fault.DISCONNECT, Fault.SLOW)}

    async def statuses(order: list[int]) -> dict[int, int]:
        client = local_client(policy_model=hosted(path, faults=rates))
        return {
            n: (await client.post("policy_model", RESPONSES, json={"input": f"go {n}"})).status for n in order
        }

    forth, back = asyncio.run(statuses([*range(50)])), asyncio.run(statuses([*range(49, -1, -1)]))
    assert forth == back
    assert {200, 429, 500} == set(forth.values())
