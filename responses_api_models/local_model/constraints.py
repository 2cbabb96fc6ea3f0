"""What a generation is held to, a JSON schema or the call of a tool, as a grammar of the engine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.formats.generated_text import CALL_BEGIN, CALL_END
from responses_api_models.local_model.request_parameters import BadParameterError

_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""With white space left free, a small model writes little else."""


def constraints_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's parameters that hold a generation to what a Chat Completions request asks for."""
    grammar = _grammar_of(request)
    constraints: dict[str, Any] = {} if grammar is None else {"grammar": grammar}
    if request.get("tools") and request.get("parallel_tool_calls") is False:
        stops = request.get("stop") or []
        constraints["stop"] = [*([stops] if isinstance(stops, str) else stops), CALL_END]
    return constraints


def _grammar_of(request: Mapping[str, Any]) -> str | None:
    """None: the model writes what it likes."""
    tools = offered_tools(request)
    choice = request.get("tool_choice") or "auto"
    schema = _schema_of(request.get("response_format"))
    called = _called_tools(choice, tools)
    if called and schema is not None:
        raise BadParameterError("response_format: not together with a tool_choice that asks for a call")
    if called:
        call = _grammar_json(_calls_schema([tool["function"] for tool in called]))
        return f'{_HEAD}start: "{CALL_BEGIN}\\n" call "\\n{CALL_END}"\ncall: %json {call}\n'
    return None if schema is None else f"{_HEAD}start: %json {_grammar_json(schema)}\n"


def offered_tools(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that the model is shown."""
    tools = request.get("tools") or []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadParameterError("tools: local_model takes functions alone, each with a name")
    return [] if request.get("tool_choice") == "none" else list(tools)


_HEAD = "%llguidance {}\n"


def _called_tools(choice: object, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools of which one must be called; empty: none must."""
    if choice in ("auto", "none"):
        return []
    if choice == "required":
        if not tools:
            raise BadParameterError("tool_choice: a call is required, but there are no tools")
        return list(tools)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        raise BadParameterError("tool_choice: allowed_tools is not known here; offer only those tools")
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    called = [tool for tool in tools if tool["function"]["name"] == name]
    if not called:
        raise BadParameterError(f"tool_choice: there is no tool {name!r} among those offered")
    return called


def _calls_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One call of one of these; their parameters stand apart, where what they refer to is found."""
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
    """A schema that refers to parts of itself, to be found at `place` within another."""
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
    return json.dumps({**schema, "x-guidance": _TIGHT})
