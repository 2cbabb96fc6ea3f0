"""Builds one assistant message of Chat Completions from the items of one model call."""

import json
from typing import Any

from nemo_gym.formats.content import chat_part, checked_part, checked_parts, text_of
from nemo_gym.formats.conversion_error import FormatError
from nemo_gym.formats.reasoning import ReasoningStyle
from nemo_gym.formats.token_fields import copy_tokens

Item = dict[str, Any]


class AssistantTurn:
    """Collects items in any order: a chat message has separate fields for reasoning, content and calls."""

    __slots__ = ("calls", "has_message", "is_truncated", "last", "name", "parts", "refusals", "thoughts")

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.is_truncated = False
        self.parts: list[dict[str, Any]] = []
        self.refusals: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.has_message = False
        self.name: str | None = None
        self.last: Item = {}
        """The item added last: it has the token fields of the call, if there are any."""

    def add_reasoning(self, item: Item) -> None:
        text = reasoning_text(item)
        if text is not None:
            self.thoughts.append(text)
            self.is_truncated = item.get("status") == "incomplete"
        self.last = item

    def add_message(self, item: Item) -> None:
        content = item.get("content")
        if isinstance(content, str):
            self.parts.append({"type": "text", "text": content})
        elif content is not None:
            self._add_parts(checked_parts(content))
        self.has_message = True
        self.name = item.get("name")
        self.last = item

    def _add_parts(self, content: list[Any]) -> None:
        for index, part in enumerate(content):
            kind = checked_part(part, index).get("type")
            if kind == "output_text":  # the most frequent type: faster than chat_part
                self.parts.append({"type": "text", "text": text_of(part, index)})
            elif kind == "refusal":
                self.refusals.append(text_of(part, index, "refusal"))
            else:
                self.parts.append(chat_part(part, index))

    def add_call(self, item: Item) -> None:
        """Missing fields are left out; the endpoint decides whether it needs them."""
        call_id, name = item.get("call_id"), item.get("name")
        function = {"arguments": argument_text(item.get("arguments"))}
        if name is not None:
            function["name"] = name
        call: dict[str, Any] = {"type": "function", "function": function}
        if call_id is not None:
            call["id"] = call_id
        self.calls.append(call)
        self.last = item

    def content(self) -> str | list[dict[str, Any]] | None:
        """A single plain text as a string, anything else as parts; None if the turn has no content."""
        parts = self.parts
        if len(parts) == 1 and parts[0].get("type") == "text" and len(parts[0]) == 2:
            text: str = parts[0]["text"]
            return text
        return parts or None

    def message(self, content: Any, style: ReasoningStyle, *, with_tokens: bool) -> dict[str, Any]:
        """The chat message. `content` is the content of this turn in the form that the reader accepts."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.thoughts:
            text = self.thoughts[0] if len(self.thoughts) == 1 else "\n".join(self.thoughts)
            style.write(message, text, is_truncated=self.is_truncated)
        if self.name is not None:
            message["name"] = self.name
        if self.refusals:
            message["refusal"] = "".join(self.refusals)
        if self.calls:
            message["tool_calls"] = self.calls
        if with_tokens:
            copy_tokens(self.last, message)
        return message


def reasoning_text(item: Item) -> str | None:
    """The text of the reasoning, or else its summary; None if all of it is encrypted."""
    parts = item.get("content") or item.get("summary")
    if not parts:
        return None
    if not isinstance(parts, list):
        raise FormatError("the content and the summary of a reasoning item must be lists of parts")
    if len(parts) == 1:
        return text_of(checked_part(parts[0], 0), 0)
    return "\n".join(text_of(checked_part(part, index), index) for index, part in enumerate(parts))


def argument_text(arguments: Any) -> str:
    """Arguments as both APIs have them, JSON in a string; some engines send the object itself."""
    if isinstance(arguments, str):
        return arguments
    return "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
