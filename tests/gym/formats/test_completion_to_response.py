"""Conversion of chat completions into model responses."""

import time
from typing import Any

import pytest

from nemo_gym.formats import ReasoningField, ReasoningTags, ResponseFormatError, response

FIELD, TAGS = ReasoningField(), ReasoningTags()
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
TOKENS: dict[str, Any] = {
    "prompt_token_ids": list(range(1000)),
    "generation_token_ids": [3],
    "generation_log_probs": [None],
    "generation_log_probs_mode": "raw_logprobs",
}
ZEROS = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def completion(finish_reason: Any = "stop", logprobs: Any = None, **message: Any) -> dict[str, Any]:
    message = {"role": "assistant", **message}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": logprobs}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 5, "model": "m", "choices": [choice]}


def output(style: Any = FIELD, params: Any = None, **fields: Any) -> list[dict[str, Any]]:
    """The items of the converted response; each has a unique id with the prefix of its type."""
    items = response(completion(**fields), params or {}, style)["output"]
    ids = [item.pop("id") for item in items]
    assert len(set(ids)) == len(ids)
    prefixes = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
    assert all(one.startswith(prefixes[item["type"]]) for one, item in zip(ids, items, strict=True))
    return items


def said(text: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], **more}
    return {"type": "message", "role": "assistant", "content": [part], "status": status}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def called(call_id: str = "c1", status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": "add",
        "arguments": "{}",
        "status": status,
    }


def test_text_reasoning_and_calls_become_items() -> None:
    assert output(content="x") == [said("x")]
    assert output(content="x", reasoning_content="t", tool_calls=[CALL, CALL | {"id": "c2"}]) == [
        thought("t"),
        said("x"),
        called("c1"),
        called("c2"),
    ]
    assert output(content=None, tool_calls=[CALL], finish_reason="tool_calls") == [called()]
    assert output(content=None, refusal="no")[0]["content"] == [{"type": "refusal", "refusal": "no"}]


def test_think_tags_are_reasoning_unless_the_endpoint_parses_it() -> None:
    assert output(TAGS, content="<think>t</think>x") == [thought("t"), said("x")]
    assert output(TAGS, content="t</think>x") == [thought("t"), said("x")]
    assert output(TAGS, content="<think>t", finish_reason="length") == [
        thought("t") | {"status": "incomplete"}
    ]
    assert output(TAGS, content="<think>t</think>", finish_reason="length") == [thought("t")]
    assert output(FIELD, content="<think>t</think>x") == [said("<think>t</think>x")]


@pytest.mark.parametrize("empty", [{"content": None}, {"content": ""}, {}, {"content": "", "tool_calls": []}])
def test_an_empty_completion_becomes_an_empty_message(empty: dict[str, Any]) -> None:
    assert output(**empty) == [said("")]


def test_each_call_without_an_id_gets_its_own_id() -> None:
    bare = {"function": {"name": "add", "arguments": {}}}
    items = output(tool_calls=[bare, bare, {**bare, "id": ""}])
    ids = [item.pop("call_id") for item in items]
    assert len(set(ids)) == 3
    assert all(one.startswith("call_") for one in ids)
    assert [{**item, "call_id": "c1"} for item in items] == [called()] * 3


@pytest.mark.parametrize(
    ("finish_reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        (None, "completed", None),
        ("abort", "completed", None),
        (["odd"], "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_the_finish_reason_becomes_a_status(finish_reason: Any, status: str, details: Any) -> None:
    converted = response(completion(finish_reason, content="x", tool_calls=[CALL]), {}, FIELD)
    assert (converted["status"], converted["incomplete_details"], converted["error"]) == (
        status,
        details,
        None,
    )
    assert [item["status"] for item in converted["output"]] == ["completed", status]


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"content": "x", "tool_calls": [CALL]},
        {"content": "<think>t"},
        {"content": None, "reasoning": "t"},
        {"content": None},
    ],
)
def test_the_last_item_has_the_same_token_list_objects(message: dict[str, Any]) -> None:
    *others, last = output(TAGS, **message, **TOKENS)
    assert all(last[field] is TOKENS[field] for field in TOKENS)
    assert not any(item.keys() & TOKENS.keys() for item in others)


@pytest.mark.parametrize(
    "params", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 1}, {"logprobs": True}]
)
def test_log_probs_are_on_the_text_if_requested(params: dict[str, Any]) -> None:
    log_probs = [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}]
    fields: dict[str, Any] = {"content": "x", "logprobs": {"content": log_probs}}
    [message] = output(params=params, **fields)
    assert message["content"][0]["logprobs"] is log_probs
    assert output(**fields) == [said("x")]
    assert output(params=params, tool_calls=[CALL], logprobs={"content": log_probs}) == [called()]
    assert output(params=params, content="x", logprobs={"content": None}) == [said("x")]


def test_citations_are_on_the_text() -> None:
    citation = {"url": "u", "title": "t", "start_index": 0, "end_index": 1}
    annotations = [{"type": "url_citation", "url_citation": citation}, {"type": "other"}]
    flat = [{"type": "url_citation", **citation}, {"type": "other"}]
    assert output(content="x", annotations=annotations)[0]["content"][0]["annotations"] == flat
    assert output(tool_calls=[CALL], annotations=annotations) == [called()]


def test_content_in_parts_is_accepted() -> None:
    assert output(content=[{"type": "text", "text": "x"}]) == [said("x")]
    mine = {"type": "output_text", "text": "x"}
    assert output(content=[mine], annotations=[{"type": "other"}])[0]["content"][0]["text"] == "x"
    assert mine == {"type": "output_text", "text": "x"}


def test_usage_is_renamed_and_other_counts_are_kept() -> None:
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 6},
        "cost": 0.5,
        "nothing": None,
    }
    assert response(completion(content="x") | {"usage": usage}, {}, FIELD)["usage"] == {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 4, "audio_tokens": 5},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 6},
        "total_tokens": 3,
        "cost": 0.5,
    }


@pytest.mark.parametrize(
    "usage",
    [None, {}, "odd", {"prompt_tokens": None, "completion_tokens": "x", "prompt_tokens_details": None}],
)
def test_missing_usage_is_all_zeros(usage: Any) -> None:
    assert response(completion(content="x") | {"usage": usage}, {}, FIELD)["usage"] == ZEROS


def test_a_missing_total_is_the_sum() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    assert response(completion(content="x") | {"usage": usage}, {}, FIELD)["usage"]["total_tokens"] == 3


def test_the_response_repeats_its_request_and_keeps_extra_fields_of_the_endpoint() -> None:
    params = {
        "input": "hi",
        "instructions": "i",
        "max_output_tokens": 5,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
        "text": {"verbosity": "low"},
        "tool_choice": "required",
        "tools": [{"type": "function", "name": "add"}],
        "top_p": 0.9,
    }
    extra = {"system_fingerprint": "f", "service_tier": "flex", "unknown": [1]}
    converted = response(
        completion(content="x") | extra | {"prompt_logprobs": None, "error": "x"}, params, FIELD
    )
    del params["input"], converted["output"]
    assert converted == {
        **params,
        **extra,
        "id": "chatcmpl-1",
        "object": "response",
        "created_at": 5,
        "model": "m",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "usage": ZEROS,
    }
    assert converted["tools"] is params["tools"]


def test_missing_fields_get_defaults() -> None:
    bare = {"choices": [{"message": {"content": "x"}}]}
    before_s = int(time.time())
    converted = response(bare, {"model": "requested", "tools": None}, FIELD)
    assert before_s <= converted["created_at"] <= time.time()
    assert converted["id"].startswith("resp_")
    assert converted["id"] != response(bare, {}, FIELD)["id"]
    assert (converted["model"], converted["tools"], converted["tool_choice"]) == ("requested", [], "auto")
    assert converted["parallel_tool_calls"] is True


def test_only_the_first_choice_is_used() -> None:
    two = completion(content="x")
    two["choices"].append({"index": 1, "message": "odd"})
    assert len(response(two, {}, FIELD)["output"]) == 1


@pytest.mark.parametrize(
    ("unreadable", "error"),
    [
        ({}, r"choices: the endpoint's chat completion has no choices, only: \[\]"),
        ({"choices": []}, "has no choices"),
        ({"choices": None, "error": {"message": "busy"}}, "has no choices, only: {'message': 'busy'}"),
        ({"choices": ["x"]}, r"choices\[0\]: must be an object, not str"),
        ({"choices": [{}]}, r"choices\[0\].message: must be an object, not NoneType"),
        ({"choices": [{"message": "x"}]}, r"choices\[0\].message: must be an object, not str"),
        (completion(content=5), r"choices\[0\].message: its content must be"),
        (
            completion(tool_calls=[{"id": "c"}]),
            r"choices\[0\].message.tool_calls\[0\]: a call needs a function",
        ),
        (
            completion(tool_calls=[{"type": "custom"}]),
            r"choices\[0\].message.tool_calls\[0\]: a call of type",
        ),
    ],
)
def test_an_unreadable_completion_is_an_error_that_names_the_place(
    unreadable: dict[str, Any], error: str
) -> None:
    with pytest.raises(ResponseFormatError, match=error):
        response(unreadable, {}, FIELD)
