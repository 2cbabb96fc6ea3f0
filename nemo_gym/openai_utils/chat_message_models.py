"""Messages of a Chat Completions request, as dicts. `role` picks the definition.

A message with a role that has no definition here may be any dict: chat templates can define more roles.
"""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from .tool_models import LENIENT
from .wire_model import JsonObject, Picked, TokenIDLogProbTypedDictMixin, has_tokens, text_or_list


@LENIENT
class NeMoGymChatCompletionContentPartTextParam(TypedDict):
    text: str
    type: Literal["text"]


def _pick_part(part: object) -> str | None:
    if not isinstance(part, dict):
        return None
    return "text" if part.get("type") == "text" else "part"


_Part = Annotated[
    NeMoGymChatCompletionContentPartTextParam | JsonObject,
    Picked(_pick_part, {"text": NeMoGymChatCompletionContentPartTextParam, "part": JsonObject}, "an object"),
]
_Content = Annotated[
    str | list[_Part], Picked(text_or_list, {"text": str, "list": list[_Part]}, "a string or a list of parts")
]


@LENIENT
class NeMoGymChatCompletionMessageToolCallFunctionParam(TypedDict):
    arguments: str
    name: str


@LENIENT
class NeMoGymChatCompletionMessageToolCallParam(TypedDict):
    """A function call of the model; the function's `arguments` are JSON in a string."""

    id: str
    function: NeMoGymChatCompletionMessageToolCallFunctionParam
    type: Literal["function"]


def pick_tool_call(call: object) -> str | None:
    """The member for a call in a dict: `function`, or `call` for a tool of another type."""
    if not isinstance(call, dict):
        return None
    return "function" if call.get("type", "function") == "function" else "call"


_ToolCall = Annotated[
    NeMoGymChatCompletionMessageToolCallParam | JsonObject,
    Picked(
        pick_tool_call,
        {"function": NeMoGymChatCompletionMessageToolCallParam, "call": JsonObject},
        "an object",
    ),
]


@LENIENT
class NeMoGymChatCompletionUserMessageParam(TypedDict):
    content: _Content
    role: Literal["user"]
    name: NotRequired[str | None]


@LENIENT
class NeMoGymChatCompletionSystemMessageParam(TypedDict):
    content: _Content
    role: Literal["system"]
    name: NotRequired[str | None]


@LENIENT
class NeMoGymChatCompletionDeveloperMessageParam(TypedDict):
    content: _Content
    role: Literal["developer"]
    name: NotRequired[str | None]


@LENIENT
class NeMoGymChatCompletionToolMessageParam(TypedDict):
    """The output of the tool call `tool_call_id`."""

    content: _Content
    role: Literal["tool"]
    tool_call_id: str


@LENIENT
class NeMoGymChatCompletionAssistantMessageParam(TypedDict):
    """An earlier message of the model: text, tool calls, or both."""

    role: Literal["assistant"]
    content: NotRequired[_Content | None]
    name: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[_ToolCall] | None]
    function_call: NotRequired[JsonObject | None]
    audio: NotRequired[JsonObject | None]


@LENIENT
class NeMoGymChatCompletionAssistantMessageForTrainingParam(
    NeMoGymChatCompletionAssistantMessageParam, TokenIDLogProbTypedDictMixin
):
    """With the token ids and log-probabilities of its generation."""


@LENIENT
class _OtherMessageParam(TypedDict):
    role: str


_MEMBERS: dict[str, Any] = {
    "user": NeMoGymChatCompletionUserMessageParam,
    "system": NeMoGymChatCompletionSystemMessageParam,
    "developer": NeMoGymChatCompletionDeveloperMessageParam,
    "assistant": NeMoGymChatCompletionAssistantMessageParam,
    "assistant_for_training": NeMoGymChatCompletionAssistantMessageForTrainingParam,
    "tool": NeMoGymChatCompletionToolMessageParam,
    "message": _OtherMessageParam,
}


def _pick_message(message: object) -> str | None:
    if not isinstance(message, dict):
        return None
    role: Any = message.get("role")
    if role == "assistant":
        return "assistant_for_training" if has_tokens(message) else "assistant"
    return role if role in ("user", "system", "developer", "tool") else "message"


NeMoGymChatCompletionMessageParam = Annotated[
    NeMoGymChatCompletionUserMessageParam
    | NeMoGymChatCompletionSystemMessageParam
    | NeMoGymChatCompletionDeveloperMessageParam
    | NeMoGymChatCompletionAssistantMessageParam
    | NeMoGymChatCompletionAssistantMessageForTrainingParam
    | NeMoGymChatCompletionToolMessageParam
    | _OtherMessageParam,
    Picked(_pick_message, _MEMBERS, "a message"),
]
