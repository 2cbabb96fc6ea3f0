"""Converts chat messages into the items of a Responses conversation.

An assistant message becomes the items of a model call: reasoning, a message, function calls, in this order,
as far as present. An empty assistant message becomes a message with an empty text. Items made here have no
ids and no status: a request does not need them, and `output_items` adds them for a response.
"""

from typing import Any

from nemo_gym.formats.assistant_turn import argument_text
from nemo_gym.formats.content import checked_part, checked_parts, responses_content, text_of
from nemo_gym.formats.conversion_error import FormatError
from nemo_gym.formats.reasoning import ReasoningStyle, SplitText
from nemo_gym.formats.token_fields import copy_tokens

Item = dict[str, Any]
Message = dict[str, Any]


def items_from_messages(messages: Any, style: ReasoningStyle, *, with_tokens: bool) -> list[Item]:
    """Chat messages as items; `with_tokens` keeps the token fields of assistant messages."""
    if not isinstance(messages, list):
        raise FormatError(f"must be a list, not {type(messages).__name__}", "messages")
    items: list[Item] = []
    for index, message in enumerate(messages):
        try:
            items += _items(message, style, with_tokens)
        except FormatError as error:
            raise error.within(f"messages[{index}]") from None
    return items


def _items(message: Any, style: ReasoningStyle, with_tokens: bool) -> list[Item]:
    if not isinstance(message, dict):
        raise FormatError(f"a message must be an object, not {type(message).__name__}")
    role = message.get("role")
    if role == "assistant":
        items = generated_items(message, style)
        if with_tokens:
            copy_tokens(message, items[-1])
        return items
    if role == "tool":
        return [_output(message)]
    if not isinstance(role, str):
        raise FormatError("a message needs a role")
    item = {"type": "message", "role": role, "content": responses_content(message.get("content"))}
    if message.get("name") is not None:
        item["name"] = message["name"]
    return [item]


def _output(message: Message) -> Item:
    item = {"type": "function_call_output", "output": responses_content(message.get("content"))}
    if message.get("tool_call_id") is not None:
        item["call_id"] = message["tool_call_id"]
    if message.get("name") is not None:
        item["name"] = message["name"]
    return item


def generated_items(message: Message, style: ReasoningStyle) -> list[Item]:
    """One assistant message as items, without token fields."""
    content = message.get("content")
    split = style.read(message, content if isinstance(content, str) else "")
    items: list[Item] = []
    if split.reasoning is not None:
        items.append(_reasoning(split))
    parts = _output_parts(message, content, split.text)
    calls = _calls(message)
    if not parts and not calls and not items:
        parts = [_output_text("")]
    if parts:
        item: Item = {"type": "message", "role": "assistant", "content": parts}
        if message.get("name") is not None:
            item["name"] = message["name"]
        items.append(item)
    return items + calls


def _reasoning(split: SplitText) -> Item:
    # In the summary, because verifiers and trainers read it there.
    item: Item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": split.reasoning}]}
    if split.is_truncated:
        item["status"] = "incomplete"
    return item


def _output_parts(message: Message, content: Any, text: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if text:
        parts.append(_output_text(text))
    elif content is not None and not isinstance(content, str):
        parts += [_output_part(part, index) for index, part in enumerate(checked_parts(content))]
    refusal = message.get("refusal")
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    return parts


def _output_part(given: Any, index: int) -> dict[str, Any]:
    part = checked_part(given, index)
    return _output_text(text_of(part, index)) if part.get("type") in ("text", "output_text") else part


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _calls(message: Message) -> list[Item]:
    calls = message.get("tool_calls")
    if not calls:
        old = message.get("function_call")  # the deprecated field for a single call
        return [_call({"function": old}, 0)] if old else []
    if not isinstance(calls, list):
        raise FormatError(f"must be a list, not {type(calls).__name__}", "tool_calls")
    return [_call(call, index) for index, call in enumerate(calls)]


def _call(call: Any, index: int) -> Item:
    if not isinstance(call, dict):
        problem = f"a call must be an object, not {type(call).__name__}"
        raise FormatError(problem, f"tool_calls[{index}]")
    kind, function = call.get("type"), call.get("function")
    if kind != "function" and kind is not None:
        problem = f"a call of type {kind!r} is not supported, only functions are"
        raise FormatError(problem, f"tool_calls[{index}]")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FormatError("a call needs a function with a name", f"tool_calls[{index}]")
    arguments = argument_text(function.get("arguments"))
    item = {"type": "function_call", "name": function["name"], "arguments": arguments}
    if call_id := call.get("id"):
        item["call_id"] = call_id
    return item
