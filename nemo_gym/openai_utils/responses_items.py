"""Items of a conversation in the Responses API: messages, reasoning, tool calls and tool outputs.

`type` picks the model. An item of any other type is a `NeMoGymResponseItem`, which keeps all fields. An item
with token ids is of the `ForTraining` variant.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from .responses_parts import NeMoGymReasoningText, NeMoGymSummary, Part, TextOrParts
from .wire_model import Pick, Picked, TokenIDLogProbMixin, WireModel, has_tokens, member_of_instance


class NeMoGymResponseItem(WireModel):
    """An item of a type without its own model, such as `web_search_call` or `item_reference`."""

    type: str | None = None
    id: str | None = None


class NeMoGymEasyInputMessage(WireModel):
    """A message in its short form: a role, and a string or parts."""

    content: TextOrParts
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] | None = "message"

    _rare = frozenset({"phase"})


class NeMoGymMessage(WireModel):
    """An input message as the API returns it: its content in parts, with a status."""

    content: list[Part]
    role: Literal["user", "system", "developer"]
    status: str | None = None
    type: Literal["message"] | None = "message"


class NeMoGymResponseOutputMessage(WireModel):
    """A message that the model generated."""

    id: str | None = None
    content: list[Part]
    role: Literal["assistant"] = "assistant"
    status: str | None = "completed"
    type: Literal["message"] | None = "message"

    _rare = frozenset({"phase"})


class NeMoGymResponseReasoningItem(WireModel):
    """The reasoning of the model, as text, as a summary, or encrypted."""

    id: str | None = None
    summary: list[NeMoGymSummary] = Field(default_factory=list)
    type: Literal["reasoning"] = "reasoning"
    content: list[NeMoGymReasoningText] | None = None

    _rare = frozenset({"encrypted_content", "status"})


class NeMoGymResponseFunctionToolCall(WireModel):
    """A function call of the model; `arguments` is JSON in a string."""

    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None

    _rare = frozenset({"namespace", "status"})


class NeMoGymFunctionCallOutput(WireModel):
    """The output of the function call `call_id`."""

    call_id: str | None = None
    output: TextOrParts
    type: Literal["function_call_output"] = "function_call_output"

    _rare = frozenset({"id", "name", "namespace", "status"})


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    """With the token ids and log-probabilities of its generation."""


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    """With the token ids and log-probabilities of its generation."""


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    """With the token ids and log-probabilities of its generation."""


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    """With the token ids and log-probabilities of its generation."""


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    """With the token ids and log-probabilities of its generation."""


_MEMBERS: dict[str, type[WireModel]] = {
    "message": NeMoGymEasyInputMessage,
    "message_for_training": NeMoGymEasyInputMessageForTraining,
    "input_message": NeMoGymMessage,
    "input_message_for_training": NeMoGymMessageForTraining,
    "output_message": NeMoGymResponseOutputMessage,
    "output_message_for_training": NeMoGymResponseOutputMessageForTraining,
    "reasoning": NeMoGymResponseReasoningItem,
    "reasoning_for_training": NeMoGymResponseReasoningItemForTraining,
    "function_call": NeMoGymResponseFunctionToolCall,
    "function_call_for_training": NeMoGymResponseFunctionToolCallForTraining,
    "function_call_output": NeMoGymFunctionCallOutput,
    "item": NeMoGymResponseItem,
}
_NAMES: dict[type, str] = {cls: name for name, cls in _MEMBERS.items()}
_FOR_TRAINING = {name.removesuffix("_for_training"): name for name in _MEMBERS if name.endswith("_training")}


def _is_message(item: dict[str, Any]) -> bool:
    """Whether an item without `type` is a message. Otherwise it is a reference, which has only an `id`."""
    return "id" not in item or "role" in item or "content" in item


def _part_type(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else getattr(part, "type", None)


def _input_message(item: dict[str, Any]) -> str:
    content = item.get("content")
    if not isinstance(content, list):
        return "message"
    if item.get("role") == "assistant":
        is_output = _part_type(content[0]) in ("output_text", "refusal") if content else "id" in item
        return "output_message" if is_output else "message"
    return "message" if item.get("status") is None else "input_message"


def _output_message(item: dict[str, Any]) -> str:
    """Input messages are possible too: agents add user messages to their output."""
    return "output_message" if item.get("role", "assistant") == "assistant" else _input_message(item)


def _picker(message: Callable[[dict[str, Any]], str]) -> Pick:
    """A pick function for items; `message` returns the member for a message."""

    def pick(item: object) -> str | None:
        if not isinstance(item, dict):
            return member_of_instance(item, _NAMES)
        kind = item.get("type")
        if kind == "message" or (kind is None and _is_message(item)):
            name = message(item)
        elif kind in ("reasoning", "function_call", "function_call_output"):
            name = kind
        else:
            name = "item"
        return _FOR_TRAINING.get(name, name) if has_tokens(item) else name

    return pick


_Item = (
    NeMoGymEasyInputMessage
    | NeMoGymMessage
    | NeMoGymResponseOutputMessage
    | NeMoGymResponseReasoningItem
    | NeMoGymResponseFunctionToolCall
    | NeMoGymFunctionCallOutput
    | NeMoGymEasyInputMessageForTraining
    | NeMoGymMessageForTraining
    | NeMoGymResponseOutputMessageForTraining
    | NeMoGymResponseReasoningItemForTraining
    | NeMoGymResponseFunctionToolCallForTraining
    | NeMoGymResponseItem
)
NeMoGymResponseInputItem = Annotated[_Item, Picked(_picker(_input_message), _MEMBERS, "an item")]
NeMoGymResponseOutputItem = Annotated[_Item, Picked(_picker(_output_message), _MEMBERS, "an item")]
NeMoGymResponseInput = list[NeMoGymResponseInputItem]
