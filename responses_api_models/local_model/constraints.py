"""Builds a grammar for the engine from the JSON schema or the tool call that a request requires."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.formats.generated_text import CALL_BEGIN, CALL_END
from responses_api_models.local_model.request_parameters import BadParameterError

_FIXED_WHITE_SPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""If the grammar allows arbitrary white space, a small model generates little else."""


def constraints_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """The engine parameters that force a generation to have the form that a request requires."""
    grammar = _grammar_of(request)
    constraints: dict[str, Any] = {} if grammar is None else {"grammar": grammar}
    if request.get("tools") and request.get("parallel_tool_calls") is False:
        stops = request.get("stop") or []
        constraints["stop"] = [*([stops] if isinstance(stops, str) else stops), CALL_END]
    return constraints


def _grammar_of(request: Mapping[str, Any]) -> str | None:
    """None if the request requires no form."""
    tools = offered_tools(request)
    choice = request.get("tool_choice") or "auto"
    schema = _schema_of(request.get("response_format"))
    called = _called_tools(choice, tools)
    if called and schema is not None:
        raise BadParameterError("response_format: cannot be combined with a tool_choice that requires a call")
    if called:
        call = _grammar_json(_calls_schema([tool["function"] for tool in called]))
        return f'{_HEAD}start: "{CALL_BEGIN}\\n" call "\\n{CALL_END}"\ncall: %json {call}\n'
    return None if schema is None else f"{_HEAD}start: %json {_grammar_json(schema)}\n"


def offered_tools(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that the prompt contains."""
    tools = request.get("tools") or []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadParameterError("tools: local_model supports only functions, each with a name")
    return [] if request.get("tool_choice") == "none" else list(tools)


_HEAD = "%llguidance {}\n"


def _called_tools(choice: object, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools one of which must be called; empty if no call is required."""
    if choice in ("auto", "none"):
        return []
    if choice == "required":
        if not tools:
            raise BadParameterError("tool_choice: a call is required, but the request offers no tools")
        return list(tools)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        raise BadParameterError("tool_choice: allowed_tools is not supported; offer only these tools")
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    called = [tool for tool in tools if tool["function"]["name"] == name]
    if not called:
        raise BadParameterError(f"tool_choice: the request offers no tool {name!r}")
    return called


def _calls_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of one call of one of these functions. Their parameters are in `$defs`, so that references
    within them can be resolved."""
    places = [f"#/$defs/parameters_{index}" for index in range(len(functions))]
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": {"$ref": place}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function, place in zip(functions, places, strict=True)
        ],
        "$defs": {
            place.rpartition("/")[2]: _moved(function.get("parameters") or {"type": "object"}, place)
            for function, place in zip(functions, places, strict=True)
        },
    }


def _moved(schema: Any, place: str) -> Any:
    """`schema` with its references to itself changed: it is at `place` within another schema."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }


def _schema_of(response_format: object) -> dict[str, Any] | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = response_format.get("json_schema") if isinstance(response_format, dict) else None
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise BadParameterError(
            "response_format: must be of type text, json_object or json_schema, the last with its schema"
        )
    return schema


def _grammar_json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _FIXED_WHITE_SPACE})
