import json

import pytest

from nemo_gym.formats.generated_text import Call, Generated, parse_generated

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "text": "\u00fc"}}\n</tool_call>'


def test_a_call_is_removed_from_the_text() -> None:
    (call,) = parse_generated(CALL, tools_offered=True).calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1, "text": "\u00fc"})
    assert parse_generated(CALL, tools_offered=True).text == ""


def test_several_calls_and_the_text_around_them_keep_their_order() -> None:
    written = parse_generated(f"First.{CALL}\n{CALL} Last.", tools_offered=True)
    assert [call.name for call in written.calls] == ["add", "add"]
    assert written.text == "First.\n Last."


def test_a_call_without_its_end_tag_counts() -> None:
    written = parse_generated(CALL.removesuffix("</tool_call>"), tools_offered=True)
    assert [call.name for call in written.calls] == ["add"]


def test_arguments_in_a_string_are_unchanged() -> None:
    text = '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert parse_generated(text, tools_offered=True).calls == [Call("add", '{"a": 1}')]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": 3}</tool_call>',
        f"<tool_call>{'[' * 100_000}",
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>',
    ],
)
def test_malformed_markup_stays_in_the_text(text: str) -> None:
    assert parse_generated(text, tools_offered=True) == Generated(None, text, [])


def test_without_offered_tools_there_are_no_calls() -> None:
    assert parse_generated(CALL, tools_offered=False) == Generated(None, CALL, [])


def test_reasoning_is_separated_from_the_text() -> None:
    written = parse_generated(f"<think>hm</think>{CALL}", tools_offered=True)
    assert (written.reasoning, len(written.calls)) == ("hm", 1)


def test_calls_of_a_chat_message_have_unique_ids() -> None:
    first, second = parse_generated(CALL + CALL, tools_offered=True).tool_calls()
    assert first["function"]["name"] == "add"
    assert first["id"] != second["id"]
