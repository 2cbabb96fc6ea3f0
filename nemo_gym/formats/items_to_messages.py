"""Converts the items of a Responses conversation into chat messages.

The items of one model call become one assistant message. A model call ends
- before a message of another role and before a function output;
- after an item with token ids;
- before a second assistant message, unless function calls come before it: in Chat Completions their outputs
  must follow the message with the calls directly.
"""

from collections.abc import Callable, Iterable
from typing import Any

from nemo_gym.formats.assistant_turn import AssistantTurn
from nemo_gym.formats.chat_style import ChatStyle
from nemo_gym.formats.content import chat_content
from nemo_gym.formats.conversion_error import FormatError
from nemo_gym.openai_utils.wire_model import has_tokens

Message = dict[str, Any]
Item = dict[str, Any]


def messages_from_input(items: Any, chat_style: ChatStyle) -> list[Message]:
    """The `input` of a Responses request as chat messages."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise FormatError(f"must be a string or a list of items, not {type(items).__name__}", "input")
    return _History(chat_style).messages_of(items)


class _History:
    """The messages so far and the model call whose items are being collected."""

    def __init__(self, chat_style: ChatStyle) -> None:
        self._chat_style = chat_style
        self._messages: list[Message] = []
        self._turn: AssistantTurn | None = None

    def messages_of(self, items: Iterable[Any]) -> list[Message]:
        for index, item in enumerate(items):
            try:
                self._add(item)
            except FormatError as error:
                raise error.within(f"input[{index}]") from None
        self._end_turn()
        return self._messages

    def _add(self, item: Any) -> None:
        kind = item_type(item)
        if kind == "message":
            if item.get("role") == "assistant":
                self._add_generated(AssistantTurn.add_message, item)
            else:
                self._add_given(item)
        elif kind == "function_call":
            self._add_generated(AssistantTurn.add_call, item)
        elif kind == "function_call_output":
            self._add_output(item)
        elif kind == "reasoning":
            self._add_generated(AssistantTurn.add_reasoning, item)
        else:
            raise FormatError(
                f"a Chat Completions request cannot contain an item of type {kind!r}; leave it out of the "
                "input, or use a model server that supports the Responses API"
            )

    def _add_generated(self, add: Callable[[AssistantTurn, Item], None], item: Item) -> None:
        turn = self._turn
        if turn is not None and turn.has_message and not turn.calls and add is not AssistantTurn.add_call:
            self._end_turn()
            turn = None
        if turn is None:
            turn = self._turn = AssistantTurn()
        add(turn, item)
        if has_tokens(item):
            self._end_turn()

    def _add_given(self, item: Item) -> None:
        self._end_turn()
        role = item.get("role")
        if not isinstance(role, str):
            raise FormatError("a message needs a role")
        message = {"role": role, "content": chat_content(item.get("content"))}
        if item.get("name") is not None:
            message["name"] = item["name"]
        self._messages.append(message)

    def _add_output(self, item: Item) -> None:
        self._end_turn()
        message: Message = {"role": "tool", "content": chat_content(item.get("output"))}
        if item.get("call_id") is not None:
            message["tool_call_id"] = item["call_id"]
        if item.get("name") is not None:
            message["name"] = item["name"]
        self._messages.append(message)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        content = turn.content()
        if content is None and not turn.calls and not turn.refusals:
            if not turn.thoughts and not turn.has_message and not has_tokens(turn.last):
                return  # only encrypted reasoning: there is nothing to send
            content = ""  # chat templates expect a string here, not a null
        message = turn.message(content, self._chat_style.reasoning, with_tokens=self._chat_style.sends_tokens)
        self._messages.append(message)


def item_type(item: Any) -> Any:
    """The type of an item. An item without a type is a message, or a reference if it only has an id."""
    if not isinstance(item, dict):
        raise FormatError(f"an item must be an object, not {type(item).__name__}")
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item or "content" in item or "id" not in item else "item_reference"
    return kind
