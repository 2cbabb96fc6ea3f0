"""Converts `tools` and `tool_choice` in both directions. Only functions are supported."""

from typing import Any

from nemo_gym.formats.conversion_error import FormatError

Tool = dict[str, Any]


def chat_tools(tools: Any) -> list[Tool]:
    """Flat functions as nested ones; nested ones are kept."""
    return [_nested(_function(tool, index)) for index, tool in enumerate(_tools(tools))]


def responses_tools(tools: Any) -> list[Tool]:
    """Nested functions as flat ones; flat ones are kept."""
    return [_flat(_function(tool, index)) for index, tool in enumerate(_tools(tools))]


def chat_tool_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools" and "allowed_tools" not in choice:
        inner = {key: value for key, value in choice.items() if key != "type"}
        return {"type": "allowed_tools", "allowed_tools": {**inner, "tools": chat_tools(inner.get("tools"))}}
    return _nested(choice) if choice.get("type") == "function" else choice


def responses_tool_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    inner = choice.get("allowed_tools")
    if isinstance(inner, dict):
        return {"type": "allowed_tools", **inner, "tools": responses_tools(inner.get("tools"))}
    return _flat(choice) if choice.get("type") == "function" else choice


def _tools(tools: Any) -> list[Any]:
    if not isinstance(tools, list):
        raise FormatError(f"must be a list, not {type(tools).__name__}", "tools")
    return tools


def _function(tool: Any, index: int) -> Tool:
    if not isinstance(tool, dict):
        raise FormatError(f"a tool must be an object, not {type(tool).__name__}", f"tools[{index}]")
    kind = tool.get("type", "function")
    if kind != "function":
        problem = f"a tool of type {kind!r} is not supported, only functions are; leave it out"
        raise FormatError(problem, f"tools[{index}]")
    return tool


def _nested(tool: Tool) -> Tool:
    if "function" in tool:
        return tool
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _flat(tool: Tool) -> Tool:
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else tool
