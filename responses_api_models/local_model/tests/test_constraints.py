import json
from typing import Any

import pytest

from responses_api_models.local_model.constraints import constraints_of, offered_tools
from responses_api_models.local_model.messages import checked_messages
from responses_api_models.local_model.request_parameters import BadParameterError


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def schema_in(grammar: str) -> Any:
    return json.loads(grammar.partition("%json ")[2])


def test_plain_request_has_no_grammar() -> None:
    assert constraints_of({"tools": [tool("add")], "response_format": {"type": "text"}}) == {}


def test_json_schema_is_in_the_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    grammar = constraints_of({"response_format": form})["grammar"]
    assert schema_in(grammar).items() >= schema.items()


def test_required_call_may_be_of_any_tool() -> None:
    grammar = constraints_of({"tools": [tool("add"), tool("sub")], "tool_choice": "required"})["grammar"]
    names = [call["properties"]["name"]["const"] for call in schema_in(grammar)["anyOf"]]
    assert names == ["add", "sub"]


def test_call_of_a_named_tool_is_of_that_tool() -> None:
    choice = {"type": "function", "function": {"name": "sub"}}
    grammar = constraints_of({"tools": [tool("add"), tool("sub")], "tool_choice": choice})["grammar"]
    assert [call["properties"]["name"]["const"] for call in schema_in(grammar)["anyOf"]] == ["sub"]


def test_references_within_parameters_stay_valid() -> None:
    parameters = {"$defs": {"P": {"type": "integer"}}, "properties": {"p": {"$ref": "#/$defs/P"}}}
    tools = [tool("a"), {"type": "function", "function": {"name": "b", "parameters": parameters}}]
    schema = schema_in(constraints_of({"tools": tools, "tool_choice": "required"})["grammar"])
    place = schema["anyOf"][1]["properties"]["arguments"]["$ref"]
    found = schema
    for step in place.removeprefix("#/").split("/"):
        found = found[step]
    assert found["properties"]["p"]["$ref"] == f"{place}/$defs/P"


def test_without_parallel_calls_the_generation_stops_after_the_first() -> None:
    request = {"tools": [tool("add")], "parallel_tool_calls": False, "stop": "END"}
    assert constraints_of(request) == {"stop": ["END", "</tool_call>"]}


def test_tools_are_not_in_the_prompt_with_tool_choice_none() -> None:
    assert offered_tools({"tools": [tool("add")], "tool_choice": "none"}) == []


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"tool_choice": "required"}, "a call is required, but the request offers no tools"),
        (
            {"tools": [tool("add")], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "the request offers no tool 'x'",
        ),
        (
            {"tools": [tool("add")], "tool_choice": {"type": "allowed_tools"}},
            "allowed_tools is not supported",
        ),
        ({"tools": [{"type": "web_search"}]}, "local_model supports only functions"),
        ({"response_format": {"type": "xml"}}, "must be of type text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "the last with its schema"),
        (
            {"tools": [tool("add")], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "cannot be combined",
        ),
    ],
)
def test_unsupported_constraint_is_rejected(request_: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadParameterError, match=problem):
        constraints_of(request_)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert checked_messages([{"role": "user", "content": parts}])[0]["content"] == "ab"


@pytest.mark.parametrize(
    ("written", "shown"),
    [('{"a": 1}', '{"a": 1}'), ("2+2", '"2+2"'), ("", "{}"), (None, "{}"), ({"a": 1}, '{"a": 1}')],
)
def test_arguments_in_the_prompt_are_always_json(written: Any, shown: str) -> None:
    call: Any = {"id": "c", "type": "function", "function": {"name": "add", "arguments": written}}
    (message,) = checked_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == shown
    assert call["function"]["arguments"] == written


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "send at least one message"),
        (None, "send at least one message"),
        ([{"content": "x"}], r"messages\[0\]: must be an object with a role"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content: must be a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "supports only text, not 'image_url'"),
        ([{"role": "assistant", "tool_calls": [{}]}], "each must be a function call with a name"),
    ],
)
def test_unsupported_messages_are_rejected(messages: Any, problem: str) -> None:
    with pytest.raises(BadParameterError, match=problem):
        checked_messages(messages)
