"""The server with its real engine, shared by all tests of this file."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.analysis.tokens.texts import read_vocabulary
from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import find_weights
from nemo_gym.server_utils import ClientResponse, ServerClient
from responses_api_models.local_model.chat_completion import warn_about_long_prompts
from tests.support.commands import ROOT, is_running, run_command
from tests.support.engines import engines_below
from tests.support.waiting import until

CONFIG = "responses_api_models/local_model/configs/local_model_for_training.yaml"
SMALL = ["policy_model.responses_api_models.local_model.slots=4"]
WITHIN_A_CHARACTER = 15107
"""A token that ends in the middle of a character: a space and half of an emoji."""
END_OF_TURN = 2
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


class Served:
    """The server and its event loop."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.client: ServerClient = self.runner.run(
            self._open.enter_async_context(nemo_gym.open_servers(CONFIG, SMALL))
        )

    def post(self, body: dict[str, Any], path: str = "/v1/responses", status: int = 200) -> Any:
        async def posted() -> Any:
            response = await self.client.post("policy_model", path, json=body)
            assert response.status == status, await response.text()
            return await response.json()

        return self.runner.run(posted())

    def close(self) -> None:
        self.runner.run(self._open.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served()
    engines = engines_below(os.getpid())
    assert engines
    yield served
    served.close()
    assert not any(map(is_running, engines)), "the engine still runs after closing"


def test_text_has_token_fields_with_their_mode(served: Served) -> None:
    response = served.post({"input": "Say hi", "max_output_tokens": 8, "seed": 1})
    (item,) = response["output"]
    assert item["content"][0]["text"]
    assert len(item["generation_token_ids"]) == len(item["generation_log_probs"])
    assert item["generation_log_probs_mode"] == "raw_logprobs"
    usage = response["usage"]
    assert usage["input_tokens"] == len(item["prompt_token_ids"])
    assert usage["output_tokens"] == len(item["generation_token_ids"])


def test_response_has_the_times_of_its_start_and_end(served: Served) -> None:
    response = served.post({"input": "Say hi", "max_output_tokens": 4})
    assert 0 < response["completed_at"] - response["created_at"] < 60


def test_same_seed_gives_the_same_response(served: Served) -> None:
    body = {"input": "Tell me a story.", "max_output_tokens": 12, "seed": 5}
    first, again = served.post(body), served.post(body)
    assert first["output"][0]["generation_token_ids"] == again["output"][0]["generation_token_ids"]


def test_response_at_its_token_limit_is_incomplete(served: Served) -> None:
    response = served.post({"input": "Tell me a story.", "max_output_tokens": 2})
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_too_long_prompt_is_incomplete_and_not_a_failure(served: Served) -> None:
    response = served.post({"input": "word " * 4000})
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = response["output"]
    assert item["content"][0]["text"] == ""
    assert "generation_token_ids" not in item
    chat = served.post({"messages": [{"role": "user", "content": "word " * 4000}]}, "/v1/chat/completions")
    assert chat["choices"][0]["finish_reason"] == "length"


def test_too_long_prompts_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        warn_about_long_prompts("logged_once", 512)
    (record,) = caplog.records
    assert "logged_once: a prompt does not fit into the context of 512 tokens" in record.getMessage()


def test_required_call_has_arguments_that_match_the_schema(served: Served) -> None:
    body = {"input": "Say hi", "tools": [ADD], "tool_choice": "required", "max_output_tokens": 64, "seed": 2}
    (call,) = served.post(body)["output"]
    assert (call["type"], call["name"]) == ("function_call", "add")
    assert 0 <= json.loads(call["arguments"])["a"] <= 99


def test_text_with_a_json_schema_matches_it(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}},
        "required": ["color"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    response = served.post({"input": "A color?", "text": form, "max_output_tokens": 40, "seed": 1})
    assert json.loads(response["output"][0]["content"][0]["text"])["color"] in ("red", "blue")


def test_schema_that_the_engine_cannot_enforce_is_rejected(served: Served) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "bogus"}}}
    error = served.post({"input": "x", "text": form}, status=400)
    assert "cannot enforce this JSON schema" in error["detail"]


def test_conversation_with_tools_replays_sampled_tokens(served: Served) -> None:
    turn: list[dict[str, Any]] = [{"role": "user", "content": "Say hi"}]
    body = {"tools": [ADD], "tool_choice": "required", "max_output_tokens": 64, "seed": 3}
    seen: list[int] = []
    for _ in range(3):
        (call,) = served.post({**body, "input": turn})["output"]
        assert call["prompt_token_ids"][: len(seen)] == seen
        seen = call["prompt_token_ids"] + call["generation_token_ids"]
        turn += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "7"}]
    assert len(seen) > 100


def test_stop_string_is_in_the_tokens_but_not_in_the_text(served: Served) -> None:
    body = {"input": "Count to five.", "temperature": 0, "max_output_tokens": 16}
    (whole,) = served.post(body)["output"]
    text = whole["content"][0]["text"]
    stopped = served.post({**body, "stop": [text[5:8]]})
    (item,) = stopped["output"]
    assert item["content"][0]["text"] == text[: text.index(text[5:8])]
    assert stopped["status"] == "completed"
    tokens = item["generation_token_ids"]
    assert tokens == whole["generation_token_ids"][: len(tokens)]
    before = served.post({**body, "max_output_tokens": len(tokens) - 1})["output"][0]["content"][0]["text"]
    assert text[5:8] not in before


@pytest.mark.parametrize("arguments", ["2+2", ""])
def test_conversation_continues_after_a_call_with_invalid_arguments(served: Served, arguments: str) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": "not JSON"}
    history = [{"role": "user", "content": "Add."}, call, output]
    assert served.post({"input": history, "tools": [ADD], "max_output_tokens": 4})["output"]


def test_tool_with_definitions_in_its_parameters_can_be_required(served: Served) -> None:
    point = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Point"}},
        "required": ["at"],
        "additionalProperties": False,
        "$defs": {"Point": {**point, "additionalProperties": False}},
    }
    tool = {"type": "function", "name": "move", "parameters": parameters}
    body = {"input": "Move", "tools": [tool, ADD], "tool_choice": {"type": "function", "name": "move"}}
    (call,) = served.post({**body, "max_output_tokens": 64, "seed": 1})["output"]
    assert json.loads(call["arguments"])["at"]["x"] in (1, 2)


def function_call(name: str, call_id: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def test_prompt_contains_all_earlier_calls_and_their_outputs(served: Served) -> None:
    history = [
        {"role": "user", "content": "How warm is it?"},
        function_call("weather", "c1", '{"city": "Oslo"}'),
        function_call("clock", "c2", '{"zone": "CET"}'),
        {"type": "function_call_output", "call_id": "c1", "output": "seven degrees"},
        {"type": "function_call_output", "call_id": "c2", "output": "half past nine"},
        {"role": "user", "content": "Say it."},
    ]
    tools = [ADD, {**ADD, "name": "subtract"}]
    (item,) = served.post({"input": history, "tools": tools, "max_output_tokens": 2})["output"]
    prompt = read_vocabulary(find_weights()).text(item["prompt_token_ids"])
    assert prompt is not None
    system, _, rest = prompt.partition("<|im_start|>user\n")
    assert [line.count('"name":') for line in system.splitlines()] == [0, 0, 1, 1]
    assert rest == (
        "How warm is it?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {"zone": "CET"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nseven degrees<|im_end|>\n"
        "<|im_start|>tool\nhalf past nine<|im_end|>\n"
        "<|im_start|>user\nSay it.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_few_shot_prompt_leads_to_a_tool_call(served: Served) -> None:
    lines = (ROOT / "resources_servers/calculator/data/few_shot.jsonl").read_text().splitlines()
    params = json.loads(lines[5])["responses_create_params"]  # the row on which the model is most certain
    assert "tool_choice" not in params
    (call,) = served.post({**params, "temperature": 0})["output"]
    assert (call["type"], call["name"]) == ("function_call", "calculator")
    assert json.loads(call["arguments"]) == {"expression": "81 + 17"}


def test_chat_completion_has_log_probabilities_if_requested(served: Served) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
    }
    (choice,) = served.post(body | {"logit_bias": {str(WITHIN_A_CHARACTER): 90}}, "/v1/chat/completions")[
        "choices"
    ]
    assert WITHIN_A_CHARACTER in choice["message"]["generation_token_ids"]
    for token in choice["logprobs"]["content"]:
        assert token["logprob"] <= 0
        assert len(token["top_logprobs"]) == 2
    assert len(choice["message"]["generation_token_ids"]) == 3


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"input": "x", "temperature": -1}, "temperature: must be 0 or more"),
        ({"input": "x", "temprature": 1}, "did you mean temperature?"),
        ({"input": []}, "send at least one message"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "supports only text",
        ),
        ({"input": "x", "previous_response_id": "r"}, "previous_response_id"),
    ],
)
def test_invalid_request_is_rejected_with_the_reason(
    served: Served, body: dict[str, Any], problem: str
) -> None:
    assert problem in served.post(body, status=400)["detail"]


def test_weight_updates_are_rejected_unless_configured(served: Served) -> None:
    error = served.post({"model_path": str(find_weights())}, "/load_weights", status=403)
    assert "set allow_weight_updates: true" in error["detail"]


def chat(client: ServerClient, max_tokens: int | None = None) -> "asyncio.Task[ClientResponse]":
    """A generation that ends only at `max_tokens`, or else at the end of the context."""
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": max_tokens,
        "logit_bias": {str(END_OF_TURN): -100},
    }
    return asyncio.create_task(client.post("policy_model", "/v1/chat/completions", json=body))


def test_killed_engine_loses_no_request(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async def killed() -> list[int]:
        engines = engines_below(os.getpid())
        calls = [chat(served.client, max_tokens) for max_tokens in (1, 48, 48, 48, 48, 48)]
        await calls[0]  # the engine is now generating the responses to the others
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        statuses = [response.status for response in await asyncio.gather(*calls)]
        await until(lambda: "the engine died" in caplog.text)
        return statuses

    assert served.runner.run(killed()) == [200] * 6


def test_requests_fail_as_infrastructure_after_the_last_restart() -> None:
    others = set(engines_below(os.getpid()))
    place = "policy_model.responses_api_models.local_model"
    overrides = [f"{place}.max_restarts=0", f"{place}.slots=2"]

    async def killed() -> list[ClientResponse]:
        async with nemo_gym.open_servers(CONFIG, overrides) as client:
            (pid,) = set(engines_below(os.getpid())) - others
            call = chat(client)
            await chat(client, 1)  # the engine is now generating the response to the other call
            assert not call.done()
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                interrupted = await call
                return [interrupted, await client.post("policy_model", "/v1/responses", json={"input": "x"})]

    for response in asyncio.run(killed()):
        assert response.status == 500
        assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
        assert response.headers["x-nemo-gym-failure-server"] == "policy_model"
        assert response.headers["x-nemo-gym-failure-status"] == "503"
        assert "the limit is 0 restarts in 600 s (max_restarts" in asyncio.run(response.text())


def test_tools_are_rejected_if_the_template_does_not_support_them() -> None:
    # Configured weights are used with their own template.
    overrides = [f"policy_model.responses_api_models.local_model.model_path={find_weights()}"]

    async def post() -> Any:
        async with nemo_gym.open_servers(CONFIG, overrides) as client:
            body = {"input": "x", "tools": [ADD], "max_output_tokens": 2}
            return await (await client.post("policy_model", "/v1/responses", json=body)).json()

    assert "does not support tools; set chat_template" in asyncio.run(post())["detail"]


def test_missing_weights_fail_the_start_with_one_message() -> None:
    async def start() -> None:
        overrides = ["policy_model.responses_api_models.local_model.model_path=nowhere.gguf"]
        async with nemo_gym.open_servers(CONFIG, overrides):
            pass

    with pytest.raises(ConfigError, match=r"file nowhere\.gguf not found"):
        asyncio.run(start())


def test_template_without_the_eos_token_is_rejected_if_tokens_are_replayed(tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}<end>{% endfor %}")
    overrides = [f"policy_model.responses_api_models.local_model.chat_template={template}"]

    async def start() -> None:
        async with nemo_gym.open_servers(CONFIG, overrides):
            pass

    with pytest.raises(ConfigError, match=r"does not end turns with.*set eos_token"):
        asyncio.run(start())


@pytest.mark.parametrize("hosting", ["+executor=processes", "+hosting=embedded"])
def test_invalid_weights_end_a_collection_with_one_message(tmp_path: Path, hosting: str) -> None:
    ran = run_command(
        "ng_collect_rollouts",
        f"+config_paths=[resources_servers/calculator/configs/calculator.yaml,{CONFIG}]",
        "+policy_model.responses_api_models.local_model.model_path=README.md",
        "+agent_name=calculator_simple_agent",
        "+input_jsonl_fpath=resources_servers/calculator/data/few_shot.jsonl",
        f"+output_jsonl_fpath={tmp_path / 'rollouts.jsonl'}",
        hosting,
    )
    assert ran.returncode == 2
    assert "the engine cannot run" in ran.stderr
    assert "README.md" in ran.stderr
    assert "Traceback" not in ran.stderr
