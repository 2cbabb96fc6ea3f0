"""Conversion of chat messages into Responses items."""

from typing import Any

import pytest

from nemo_gym.formats import ReasoningField, ReasoningTags
from nemo_gym.formats.conversion_error import FormatError
from nemo_gym.formats.messages_to_items import items_from_messages

FIELD, TAGS = ReasoningField(), ReasoningTags()
TOKENS: dict[str, Any] = {
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
    "generation_log_probs_mode": "processed_logprobs",
}
CHAT_CALL = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": "{}"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


def text(value: str) -> dict[str, Any]:
    return {"type": "output_text", "text": value, "annotations": []}


def thought(value: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": value}]}


def items(*messages: Any, style: Any = FIELD, with_tokens: bool = False) -> list[dict[str, Any]]:
    return items_from_messages(list(messages), style, with_tokens=with_tokens)


def assistant(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_strings_and_roles_are_kept(role: str) -> None:
    message = {"role": role, "content": "x", "name": "Ann"}
    assert items(message) == [{"type": "message", **message}]


def test_items_are_in_the_order_reasoning_text_calls() -> None:
    message = assistant("x", reasoning_content="t", tool_calls=[CHAT_CALL, CHAT_CALL | {"id": "c2"}])
    assert items(message) == [thought("t"), said(text("x")), CALL, CALL | {"call_id": "c2"}]


def test_tags_are_read_only_without_a_parser() -> None:
    message = assistant("<think>t</think>x")
    assert items(message, style=TAGS) == [thought("t"), said(text("x"))]
    assert items(message, style=FIELD) == [said(text("<think>t</think>x"))]
    assert items(assistant("<think>t"), style=TAGS) == [thought("t") | {"status": "incomplete"}]


@pytest.mark.parametrize("content", [None, "", []])
def test_calls_without_text_give_no_message_and_no_content_gives_an_empty_one(content: Any) -> None:
    assert items(assistant(content, tool_calls=[CHAT_CALL])) == [CALL]
    assert items(assistant(content, reasoning_content="t")) == [thought("t")]
    assert items(assistant(content)) == [said(text(""))]
    assert items(assistant(content, tool_calls=[])) == [said(text(""))]


def test_content_in_parts_and_refusals_are_converted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}, {"type": "x"}]
    assert items(assistant(parts)) == [said(text("a"), parts[1], parts[2])]
    assert items(assistant(None, refusal="no")) == [said({"type": "refusal", "refusal": "no"})]
    assert items(assistant("a", refusal="no")) == [said(text("a"), {"type": "refusal", "refusal": "no"})]


def test_a_tool_message_becomes_the_output_of_its_call() -> None:
    message = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    assert items(message) == [{"type": "function_call_output", "call_id": "c1", "output": "3"}]
    parts = [{"type": "text", "text": "3"}]
    assert items(message | {"content": parts})[0]["output"] == [{"type": "input_text", "text": "3"}]


@pytest.mark.parametrize(
    ("part", "converted"),
    [
        ({"type": "text", "text": "a", "x": 1}, {"type": "input_text", "text": "a", "x": 1}),
        ({"type": "image_url", "image_url": {"url": "u"}}, {"type": "input_image", "image_url": "u"}),
        (
            {"type": "image_url", "image_url": {"url": "u", "detail": "high"}},
            {"type": "input_image", "image_url": "u", "detail": "high"},
        ),
        ({"type": "image_url", "image_url": "u"}, {"type": "input_image", "image_url": "u"}),
        ({"type": "file", "file": {"file_id": "f"}}, {"type": "input_file", "file_id": "f"}),
        ({"type": "input_audio", "input_audio": {}}, {"type": "input_audio", "input_audio": {}}),
        ({"type": "video_url", "video_url": {}}, {"type": "video_url", "video_url": {}}),
    ],
)
def test_parts_are_converted(part: dict[str, Any], converted: dict[str, Any]) -> None:
    assert items({"role": "user", "content": [part]})[0]["content"] == [converted]


def test_token_fields_are_on_the_last_item_if_requested() -> None:
    message = assistant("x", tool_calls=[CHAT_CALL], **TOKENS)
    assert items(message, with_tokens=True) == [said(text("x")), CALL | TOKENS]
    assert items(message, with_tokens=False) == [said(text("x")), CALL]
    [item] = items(assistant("<think>t", **TOKENS), style=TAGS, with_tokens=True)
    assert all(item[field] is TOKENS[field] for field in TOKENS)


def test_incomplete_calls_are_accepted() -> None:
    bare = {"function": {"name": "add"}}
    assert items(assistant(tool_calls=[bare])) == [
        {"type": "function_call", "name": "add", "arguments": "{}"}
    ]
    an_object = {"function": {"name": "add", "arguments": {"a": [1]}}, "type": None}
    assert items(assistant(tool_calls=[an_object]))[0]["arguments"] == '{"a": [1]}'
    old = assistant(function_call={"name": "add", "arguments": "{}"})
    assert items(old) == [{"type": "function_call", "name": "add", "arguments": "{}"}]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("hi", r"messages\[0\]: a message must be an object, not str"),
        ({"content": "x"}, r"messages\[0\]: a message needs a role"),
        ({"role": "user"}, r"messages\[0\]: its content must be"),
        ({"role": "user", "content": [{"type": "text"}]}, r"messages\[0\].content\[0\]: .* needs a 'text'"),
        ({"role": "user", "content": [{"type": "image_url"}]}, r"messages\[0\].content\[0\]: an image needs"),
        (assistant(5), r"messages\[0\]: its content must be a string or a list of parts, not int"),
        (assistant(tool_calls={"a": 1}), r"messages\[0\].tool_calls: must be a list, not dict"),
        (assistant(tool_calls=["x"]), r"messages\[0\].tool_calls\[0\]: a call must be an object"),
        (assistant(tool_calls=[{"id": "c"}]), r"messages\[0\].tool_calls\[0\]: a call needs a function"),
        (
            assistant(tool_calls=[CHAT_CALL, {"type": "custom", "custom": {"name": "x"}}]),
            r"messages\[0\].tool_calls\[1\]: a call of type 'custom'",
        ),
    ],
)
def test_a_malformed_message_is_an_error_that_names_the_place(message: Any, error: str) -> None:
    with pytest.raises(FormatError, match=error):
        items(message)


def test_messages_must_be_a_list() -> None:
    with pytest.raises(FormatError, match="messages: must be a list, not NoneType"):
        items_from_messages(None, FIELD, with_tokens=False)
