from typing import Any

import pytest

from responses_api_models.vllm_model.tests.model_under_test import (
    CALL,
    REPLAY,
    WEATHER,
    Gym,
    read_and_sampled,
    text_of,
    texts_of,
    user,
)
from tests.support.vllm_stand_in import EOS, Style, VLLMStandIn, log_prob, sample, tokenize

HI = [*sample("hi"), EOS]


@pytest.mark.parametrize("style", ["ids", "strings"])
def test_history_is_never_tokenised_again(style: Style) -> None:
    with VLLMStandIn(style=style) as vllm:
        gym = Gym(vllm, **REPLAY)
        first, second, third = gym.converse("a", "b", "c", instructions="be brief")
    for before, after in ((first, second), (second, third)):
        seen = read_and_sampled(before)
        prompt = after["output"][-1]["prompt_token_ids"]
        assert prompt[: len(seen)] == seen
    added = "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    assert prompt[len(seen) :] == tokenize(added)
    assert [body["prompt"] for body in vllm.bodies("/v1/completions")] == [
        response["output"][-1]["prompt_token_ids"] for response in (first, second, third)
    ]
    assert vllm.bodies() == []


def test_response_equals_that_of_the_chat_route() -> None:
    with VLLMStandIn() as vllm:
        replayed = Gym(vllm, **REPLAY).respond({"input": "x"})
        from_chat = Gym(vllm, return_token_id_information=True).respond({"input": "x"})
    for response in (replayed, from_chat):
        for own in ("id", "created_at", "completed_at"):
            response.pop(own)
        response["output"][0].pop("id")
    assert replayed == from_chat


def test_sampling_fields_are_passed_on_and_chat_fields_are_not() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    fields = {"temperature": 0.5, "top_k": 4, "seed": 3, "stop": ["."], "response_format": schema}
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, **REPLAY, chat_template_kwargs={"enable_thinking": False})
        gym.chat({"messages": [user()], "tools": [], "reasoning_effort": "low", "max_tokens": 9, **fields})
    (sent,) = vllm.bodies("/v1/completions")
    (tokenized,) = vllm.bodies("/tokenize")
    assert sent == {
        **fields,
        "model": "mine",
        "prompt": sent["prompt"],
        "max_tokens": 9,
        "logprobs": 0,
        "n": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    assert tokenized["chat_template_kwargs"] == {"enable_thinking": False, "reasoning_effort": "low"}
    assert sent["prompt"][-8:] == tokenize("<think>\n\n</think>\n\n")[-8:]


def test_truncated_turn_is_ended_before_the_next_one() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, **REPLAY)
        first = gym.respond({"input": [user("a")], "max_output_tokens": 1})
        second = gym.respond({"input": [user("a"), *first["output"], user("b")]})
    assert first["status"] == "incomplete"
    seen = read_and_sampled(first)
    prompt = second["output"][-1]["prompt_token_ids"]
    assert prompt[: len(seen) + 1] == [*seen, EOS]


def test_tools_are_called_and_their_outputs_are_sent_back() -> None:
    def write(prompt: str) -> str:
        return "It rains." if "rain" in prompt else f"Let me see.{CALL}"

    with VLLMStandIn(write) as vllm:
        gym = Gym(vllm, **REPLAY)
        first = gym.respond({"input": [user("Oslo?")], "tools": [WEATHER]})
        call_id = first["output"][-1]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "rain"}
        items = [user("Oslo?"), *first["output"], output]
        second = gym.respond({"input": items, "tools": [WEATHER]})
    assert texts_of(first) == [("message", "Let me see."), ("function_call", 'weather {"city": "Oslo"}')]
    assert first["output"][-1]["generation_token_ids"] == [*sample(f"Let me see.{CALL}"), EOS]
    assert texts_of(second) == [("message", "It rains.")]
    seen = read_and_sampled(first)
    assert second["output"][-1]["prompt_token_ids"][: len(seen)] == seen


def test_tool_calls_stay_text_with_tool_choice_none() -> None:
    with VLLMStandIn(lambda prompt: CALL) as vllm:
        gym = Gym(vllm, **REPLAY)
        response = gym.respond({"input": "x", "tools": [WEATHER], "tool_choice": "none"})
    assert texts_of(response) == [("message", CALL)]


def test_finish_reason_of_a_call_is_tool_calls() -> None:
    with VLLMStandIn(lambda prompt: CALL) as vllm:
        tool = {"type": "function", "function": {"name": "weather"}}
        response = Gym(vllm, **REPLAY).chat({"messages": [user()], "tools": [tool]})
    (choice,) = response["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["id"].startswith("call_")


@pytest.mark.parametrize("text", ["<think>hm</think>yes", "hm</think>yes"])
@pytest.mark.parametrize("uses_reasoning_parser", [False, True])
def test_reasoning_is_a_separate_item(text: str, uses_reasoning_parser: bool) -> None:
    with VLLMStandIn(lambda prompt: text) as vllm:
        gym = Gym(vllm, **REPLAY, uses_reasoning_parser=uses_reasoning_parser)
        first, second = gym.converse("a", "b")
        message = gym.chat({"messages": [user()]})["choices"][0]["message"]
    assert texts_of(first) == texts_of(second) == [("reasoning", "hm"), ("message", "yes")]
    seen = read_and_sampled(first)
    assert second["output"][-1]["prompt_token_ids"][: len(seen)] == seen
    if uses_reasoning_parser:
        assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    else:
        assert message["content"] == text


def test_reasoning_in_tags_stays_before_the_text_beside_calls() -> None:
    with VLLMStandIn(lambda prompt: f"<think>hm</think>so{CALL}") as vllm:
        tool = {"type": "function", "function": {"name": "weather"}}
        response = Gym(vllm, **REPLAY).chat({"messages": [user()], "tools": [tool]})
    assert response["choices"][0]["message"]["content"] == "<think>hm</think>so"


def test_generation_may_fill_the_context_but_not_exceed_it() -> None:
    with VLLMStandIn(lambda prompt: "y" * 500, max_model_len=100) as vllm:
        gym = Gym(vllm, **REPLAY)
        unlimited = gym.respond({"input": "x"})
        limited = gym.respond({"input": "x", "max_output_tokens": 1000})
        short = gym.respond({"input": "x", "max_output_tokens": 5})
    for response in (unlimited, limited):
        assert response["status"] == "incomplete"
        assert len(read_and_sampled(response)) == 100
    assert len(short["output"][-1]["generation_token_ids"]) == 5


def test_prompt_that_fills_the_context_gives_an_incomplete_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with VLLMStandIn(max_model_len=20) as vllm:
        response = Gym(vllm, **REPLAY).respond({"input": "word " * 50})
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert texts_of(response) == [("message", "")]
    assert vllm.bodies("/v1/completions") == []
    (record,) = caplog.records
    assert "does not fit into the context" in record.getMessage()


def test_eos_token_may_be_text_and_its_id_is_requested_once() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, **{**REPLAY, "eos_token_id": None, "eos_token": "<|im_end|>"})
        first, second, _ = gym.converse("a", "b", "c")
    seen = read_and_sampled(first)
    assert second["output"][-1]["prompt_token_ids"][: len(seen)] == seen
    tokenized = [body for body in vllm.bodies("/tokenize") if "prompt" in body]
    assert tokenized == [{"prompt": "<|im_end|>", "add_special_tokens": False}]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"eos_token_id": None, "eos_token": "</s>!"},
            "eos_token '</s>!' is 3 tokens instead of one; set eos_token_id",
        ),
        ({"eos_token_id": 5}, "does not end turns with an end-of-sequence token (end-of-sequence is 5)"),
    ],
)
def test_wrong_eos_token_is_a_failure_that_names_it(settings: dict[str, Any], problem: str) -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, **{**REPLAY, **settings})
        (first,) = gym.converse("a")
        response = gym.post({"input": [user("a"), *first["output"], user("b")]})
    assert response.status == 502
    assert problem in text_of(response)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "required"),
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
            "image_url",
        ),
    ],
)
def test_requests_that_a_prompt_of_ids_cannot_express_are_rejected(
    body: dict[str, Any], problem: str
) -> None:
    with VLLMStandIn() as vllm:
        response = Gym(vllm, **REPLAY).post({"messages": [user()], **body}, "/v1/chat/completions")
    assert (response.status, vllm.requests) == (422, [])
    assert problem in text_of(response)
    assert "set token_id_replay: messages" in text_of(response)


def test_chat_completion_has_log_probabilities_only_if_requested() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, **REPLAY)
        without = gym.chat({"messages": [user()]})
        with_log_probs = gym.chat({"messages": [user()], "logprobs": True, "top_logprobs": 1})
    assert without["choices"][0]["logprobs"] is None
    content = with_log_probs["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [log_prob(token) for token in HI]
    assert [entry["top_logprobs"][0]["logprob"] for entry in content] == [log_prob(token) for token in HI]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda choice: choice.update(prompt_token_ids=[1]), "the prompt sent and prompt_token_ids differ"),
        (lambda choice: choice["token_ids"].pop(), "token_ids and the ids in logprobs differ"),
        (lambda choice: choice["logprobs"].update(tokens=[], token_logprobs=[]), "differ (their lengths: 3"),
        (lambda choice: choice.update(logprobs=None), "has token_ids, but no logprobs"),
        (lambda choice: choice.update(token_ids=None, logprobs=None), "the endpoint returns no token ids"),
    ],
)
def test_contradictory_tokens_are_a_failure_that_names_them(change: Any, problem: str) -> None:
    with VLLMStandIn(alter=lambda completion: change(completion["choices"][0])) as vllm:
        response = Gym(vllm, **REPLAY).post({"input": "x"})
    assert (response.status, response.headers["x-nemo-gym-failure-kind"]) == (502, "infrastructure")
    assert problem in text_of(response)
