"""Conversion of Responses items into chat messages."""

from typing import Any

import pytest

from nemo_gym.formats import ChatStyle, ReasoningField, ReasoningTags
from nemo_gym.formats.conversion_error import FormatError
from nemo_gym.formats.items_to_messages import messages_from_input

PARSER, TAGS = ChatStyle(ReasoningField()), ChatStyle(ReasoningTags())
WITH_TOKENS = ChatStyle(ReasoningField(), sends_tokens=True)
TOKENS: dict[str, Any] = {
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
    "generation_log_probs_mode": "raw_logprobs",
}


def user(text: str = "hi") -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "role": "assistant",
        "id": "m",
        "content": [part],
        "status": "completed",
        **more,
    }


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": text}], **more}


def called(call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "f", "call_id": call_id, "name": "add", "arguments": "{}", **more}


def tool_output(call_id: str = "c1", output: Any = "3") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def chat_call(call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function", "id": call_id, "function": {"name": "add", "arguments": "{}"}}


def chat_said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def messages(items: Any, chat_style: ChatStyle = PARSER) -> list[dict[str, Any]]:
    return messages_from_input(items, chat_style)


def test_a_string_is_a_user_message() -> None:
    assert messages("hi") == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_roles_are_kept_with_or_without_a_type(role: str) -> None:
    for item in (
        {"role": role, "content": "x"},
        {"type": "message", "role": role, "content": "x", "id": "m"},
    ):
        assert messages([item]) == [{"role": role, "content": "x"}]


def test_the_name_on_a_message_is_kept() -> None:
    assert messages([user() | {"name": "Ann"}]) == [{"role": "user", "content": "hi", "name": "Ann"}]
    assert messages([said("x", name="Bob")]) == [chat_said("x", name="Bob")]
    assert messages([tool_output() | {"name": "add"}])[0]["name"] == "add"


def test_the_items_of_one_model_call_become_one_message() -> None:
    items = [
        user(),
        thought("t"),
        said("x"),
        called("c1"),
        called("c2"),
        tool_output("c1"),
        tool_output("c2"),
    ]
    assert messages(items) == [
        {"role": "user", "content": "hi"},
        chat_said("x", reasoning_content="t", tool_calls=[chat_call("c1"), chat_call("c2")]),
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
    ]


def test_without_a_parser_reasoning_is_written_between_tags() -> None:
    assert messages([thought("t"), said("x")], TAGS) == [chat_said("<think>t</think>x")]
    assert messages([thought("t"), called()], TAGS) == [
        chat_said("<think>t</think>", tool_calls=[chat_call()])
    ]


def test_truncated_reasoning_has_no_closing_tag() -> None:
    assert messages([thought("t", status="incomplete")], TAGS) == [chat_said("<think>t")]
    assert messages([thought("t", status="incomplete"), said("x")], TAGS) == [chat_said("<think>t</think>x")]


def test_content_is_null_beside_calls_and_empty_beside_reasoning() -> None:
    assert messages([called()]) == [chat_said(None, tool_calls=[chat_call()])]
    assert messages([thought("t"), user()])[0] == chat_said("", reasoning_content="t")


def test_consecutive_messages_stay_separate() -> None:
    assert messages([said("a"), said("b")]) == [chat_said("a"), chat_said("b")]
    assert messages([thought("t"), said("a"), thought("u"), said("b")]) == [
        chat_said("a", reasoning_content="t"),
        chat_said("b", reasoning_content="u"),
    ]


def test_items_after_a_call_without_output_belong_to_the_same_message() -> None:
    one_message = [chat_said("x", reasoning_content="t", tool_calls=[chat_call()])]
    assert messages([thought("t"), called(), said("x")]) == one_message
    assert messages([called(), thought("t"), said("x")]) == one_message
    assert messages([said("a"), called(), said("b"), tool_output()])[0] == chat_said(
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], tool_calls=[chat_call()]
    )
    assert messages([thought("t"), called("c1"), thought("u"), called("c2")]) == [
        chat_said(None, reasoning_content="t\nu", tool_calls=[chat_call("c1"), chat_call("c2")])
    ]


def test_an_item_with_token_ids_ends_its_model_call() -> None:
    items = [called("c1", **TOKENS), called("c2", **TOKENS)]
    assert messages(items, WITH_TOKENS) == [
        chat_said(None, tool_calls=[chat_call("c1")], **TOKENS),
        chat_said(None, tool_calls=[chat_call("c2")], **TOKENS),
    ]
    assert messages(items) == [
        chat_said(None, tool_calls=[chat_call("c1")]),
        chat_said(None, tool_calls=[chat_call("c2")]),
    ]


@pytest.mark.parametrize(
    "last", [said("x", **TOKENS), called(**TOKENS), thought("t", **TOKENS), {"type": "reasoning", **TOKENS}]
)
def test_token_lists_are_not_copied(last: dict[str, Any]) -> None:
    [message] = messages([last], WITH_TOKENS)
    assert all(message[field] is TOKENS[field] for field in TOKENS)


def test_missing_token_fields_stay_missing() -> None:
    [message] = messages([said("x", generation_token_ids=[1], prompt_token_ids=None)], WITH_TOKENS)
    assert message == chat_said("x", generation_token_ids=[1])


def test_reasoning_content_takes_precedence_over_its_summary() -> None:
    item = thought("short", content=[{"type": "reasoning_text", "text": "long"}])
    assert messages([item])[0]["reasoning_content"] == "long"
    parts = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    assert messages([thought("") | {"summary": parts}])[0]["reasoning_content"] == "a\nb"


def test_encrypted_reasoning_is_left_out() -> None:
    secret = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"}
    assert messages([user(), secret]) == [{"role": "user", "content": "hi"}]
    assert messages([user(), secret, said("x")])[1:] == [chat_said("x")]


def test_assistant_messages_are_accepted_in_every_form() -> None:
    assert messages([{"role": "assistant", "content": "x"}]) == [chat_said("x")]
    assert messages([said("")]) == [chat_said("")]
    assert messages([{"role": "assistant", "content": []}]) == [chat_said("")]
    assert messages([{"role": "assistant", "content": None}]) == [chat_said("")]
    two = [{"type": "output_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages([{"role": "assistant", "content": two}]) == [
        chat_said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    ]


def test_a_refusal_has_a_separate_field() -> None:
    refusal = {"type": "refusal", "refusal": "no"}
    assert messages([said("") | {"content": [refusal]}]) == [chat_said(None, refusal="no")]
    both = [{"type": "output_text", "text": "x"}, refusal]
    assert messages([said("") | {"content": both}]) == [chat_said("x", refusal="no")]


def test_an_incomplete_call_keeps_its_fields() -> None:
    assert messages([{"type": "function_call", "name": "add", "arguments": {"a": "ä"}}]) == [
        chat_said(
            None, tool_calls=[{"type": "function", "function": {"name": "add", "arguments": '{"a": "ä"}'}}]
        )
    ]
    assert messages([{"type": "function_call"}])[0]["tool_calls"] == [
        {"type": "function", "function": {"arguments": "{}"}}
    ]
    assert messages([{"type": "function_call_output", "output": "3"}]) == [{"role": "tool", "content": "3"}]


@pytest.mark.parametrize(
    ("part", "chat_part"),
    [
        ({"type": "input_text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "output_text", "text": "a", "annotations": []}, {"type": "text", "text": "a"}),
        (
            {"type": "input_image", "image_url": "u", "detail": "low"},
            {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
        ),
        (
            {"type": "input_image", "image_url": "u", "detail": None, "file_id": None},
            {"type": "image_url", "image_url": {"url": "u"}},
        ),
        ({"type": "input_file", "file_id": "f"}, {"type": "file", "file": {"file_id": "f"}}),
        (
            {"type": "input_file", "file_data": "d", "filename": "n"},
            {"type": "file", "file": {"file_data": "d", "filename": "n"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "d"}},
            {"type": "input_audio", "input_audio": {"data": "d"}},
        ),
        ({"type": "text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "video_url", "video_url": {}}, {"type": "video_url", "video_url": {}}),
    ],
)
def test_parts_of_messages_and_of_outputs_are_converted(
    part: dict[str, Any], chat_part: dict[str, Any]
) -> None:
    assert messages([user() | {"content": [part]}])[0]["content"] == [chat_part]
    assert messages([tool_output(output=[part])])[0]["content"] == [chat_part]


@pytest.mark.parametrize(
    ("items", "error"),
    [
        (
            [user(), {"type": "web_search_call", "id": "w"}],
            r"input\[1\]: .* an item of type 'web_search_call'",
        ),
        ([{"id": "msg_1"}], r"input\[0\]: .* an item of type 'item_reference'"),
        ([user(), "hi"], r"input\[1\]: an item must be an object, not str"),
        ([{"content": "x"}], r"input\[0\]: a message needs a role"),
        ([{"role": "user"}], r"input\[0\]: its content must be a string or a list of parts, not NoneType"),
        ([{"role": "user", "content": ["x"]}], r"input\[0\].content\[0\]: a part must be an object"),
        (
            [{"role": "user", "content": [{"type": "input_text"}]}],
            r"input\[0\].content\[0\]: .* needs a 'text'",
        ),
        ([{"role": "assistant", "content": 5}], r"input\[0\]: its content must be .* not int"),
        ([{"role": "assistant", "content": [{"type": "refusal"}]}], "needs a 'refusal'"),
        (
            [user() | {"content": [{"type": "input_image", "file_id": "f"}]}],
            r"input\[0\].content\[0\]: an image .* set 'image_url'",
        ),
        (
            [tool_output(output={"a": 1})],
            r"input\[0\]: its content must be a string or a list of parts, not dict",
        ),
        ([{"type": "reasoning", "summary": "x"}], r"input\[0\]: the content and the summary"),
        ([{"type": "reasoning", "summary": ["x"]}], r"input\[0\].content\[0\]: a part must be an object"),
        ({"role": "user"}, "input: must be a string or a list of items, not dict"),
        (None, "input: must be a string or a list of items, not NoneType"),
    ],
)
def test_an_item_without_an_equivalent_is_an_error_that_names_the_place(items: Any, error: str) -> None:
    with pytest.raises(FormatError, match=error):
        messages(items)
