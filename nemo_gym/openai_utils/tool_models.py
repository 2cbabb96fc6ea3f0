"""Definitions of the tools that a request offers to the model, as dicts.

A tool of a type without a definition here may be any dict.
"""

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from .wire_model import JsonObject

LENIENT = with_config(ConfigDict(extra="allow"))


@LENIENT
class NeMoGymFunctionToolParam(TypedDict):
    """A function in the form of the Responses API."""

    name: str
    type: Literal["function"]
    parameters: NotRequired[JsonObject | None]
    strict: NotRequired[bool | None]
    description: NotRequired[str | None]


@LENIENT
class NeMoGymFunctionDefinition(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[JsonObject | None]
    strict: NotRequired[bool | None]


@LENIENT
class NeMoGymChatCompletionToolParam(TypedDict):
    """A function in the form of the Chat Completions API."""

    function: NeMoGymFunctionDefinition
    type: Literal["function"]


def pick_tool(tool: object) -> str | None:
    """The member for a tool: `function`, or `tool` for one of another type."""
    if not isinstance(tool, dict):
        return None
    return "function" if tool.get("type", "function") == "function" else "tool"
