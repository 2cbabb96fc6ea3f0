"""Conversion of model responses into chat completions."""

import time
from typing import Any

import pytest

from nemo_gym.formats import ReasoningField, ReasoningTags, ResponseFormatError, chat_completion

FIELD, TAGS = ReasoningField(), ReasoningTags()
TOKENS: dict[str, Any] = {
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
    "generation_log_probs_mode": "raw_logprobs",
}
CALL = {"type": "function_call", "id": "f", "call_id": "c1", "name": "add", "arguments": "{}"}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def said(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], **more}
    return {"type": "message", "role": "assistant", "id": "m", "content": [part], "status": "completed"}


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": text}], **more}


def choice(*items: Any, style: Any = FIELD, **fields: Any) -> dict[str, Any]:
    [only] = chat_completion({"output": list(items), **fields}, style)["choices"]
    assert only["index"] == 0
    return dict(only)


def message(*items: Any, style: Any = FIELD) -> dict[str, Any]:
    return dict(choice(*items, style=style)["message"])


def test_items_become_one_message() -> None:
    assert message(thought("t"), said("x"), CALL) == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "t",
        "tool_calls": [CHAT_CALL],
    }
    assert message(said("a"), said("b"))["content"] == "ab"
    assert message(CALL)["content"] is None
    assert message(thought("t"))["content"] is None
    assert message()["content"] == ""
    assert message({"role": "assistant", "content": "x"})["content"] == "x"
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert message(refusal) == {"role": "assistant", "content": None, "refusal": "no"}


def test_without_a_parser_reasoning_is_written_between_tags() -> None:
    assert message(thought("t"), said("x"), style=TAGS)["content"] == "<think>t</think>x"
    assert message(thought("t", status="incomplete"), style=TAGS)["content"] == "<think>t"


def test_tool_calls_that_the_endpoint_ran_itself_are_left_out() -> None:
    assert message({"type": "web_search_call", "id": "w"}, said("x")) == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("last", [said("x"), CALL, thought("t")])
def test_the_message_has_the_same_token_list_objects(last: dict[str, Any]) -> None:
    made = message(thought("before"), last | TOKENS)
    assert all(made[field] is TOKENS[field] for field in TOKENS)


@pytest.mark.parametrize(
    ("fields", "finish_reason"),
    [
        ({}, "stop"),
        ({"status": "completed", "incomplete_details": None}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "other"}}, "length"),
        ({"status": "incomplete"}, "length"),
    ],
)
def test_the_status_becomes_a_finish_reason(fields: dict[str, Any], finish_reason: str) -> None:
    assert choice(said("x"), **fields)["finish_reason"] == finish_reason


def test_the_finish_reason_is_tool_calls_unless_the_response_was_truncated() -> None:
    assert choice(CALL)["finish_reason"] == "tool_calls"
    assert choice(CALL, status="incomplete")["finish_reason"] == "length"


def test_log_probs_and_citations_move_from_the_text_to_the_choice() -> None:
    one, two = [{"token": "a"}], [{"token": "b"}]
    assert choice(said("a"))["logprobs"] is None
    assert choice(said("a", logprobs=one))["logprobs"]["content"] is one
    assert choice(said("a", logprobs=one), said("b", logprobs=two))["logprobs"]["content"] == one + two
    cited = said("a", annotations=[{"type": "url_citation", "url": "u"}, {"type": "file_citation"}])
    assert message(cited)["annotations"] == [
        {"type": "url_citation", "url_citation": {"url": "u"}},
        {"type": "file_citation"},
    ]


def test_the_other_fields_of_the_response_are_converted_or_kept() -> None:
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 6},
        "total_tokens": 3,
        "cost": 0.5,
    }
    extra = {"service_tier": "flex", "system_fingerprint": "f", "unknown": 1}
    response = {"id": "resp_1", "created_at": 5.7, "model": "m", "output": [], "usage": usage, **extra}
    completion = chat_completion({**response, "temperature": 1, "tools": [], "nothing": None}, FIELD)
    del completion["choices"]
    assert completion == {
        "id": "resp_1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "usage": {
            "prompt_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens": 2,
            "completion_tokens_details": {"reasoning_tokens": 6},
            "total_tokens": 3,
            "cost": 0.5,
        },
        **extra,
    }


def test_missing_fields_get_defaults() -> None:
    before_s = int(time.time())
    completion = chat_completion({"output": []}, FIELD)
    assert before_s <= completion["created"] <= time.time()
    assert completion["id"].startswith("chatcmpl-")
    assert completion["usage"]["total_tokens"] == 0


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ({}, "output: must be a list of items, not NoneType"),
        ({"output": [], "status": "failed", "error": {"message": "busy"}}, "has no output: .*busy"),
        ({"output": [], "status": "in_progress"}, "has no output: status 'in_progress'"),
        ({"output": ["x"]}, r"output\[0\]: an item must be an object"),
        ({"output": [{"type": "custom_tool_call"}]}, r"output\[0\]: .* item of type 'custom_tool_call'"),
        (
            {"output": [CALL, {"type": "function_call_output", "output": "3"}]},
            r"output\[1\]: .* item of type",
        ),
        ({"output": [{"type": "message", "role": "user", "content": "x"}]}, r"output\[0\]: .* item of type"),
        ({"output": [said("x") | TOKENS, said("y")]}, r"output\[1\]: a second model call begins"),
    ],
)
def test_a_response_that_is_not_one_model_call_is_an_error_that_names_the_place(
    response: dict[str, Any], error: str
) -> None:
    with pytest.raises(ResponseFormatError, match=error):
        chat_completion(response, FIELD)
