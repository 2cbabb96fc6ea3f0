"""The conversation of a rollout as a flat list of items, whichever format it was recorded in.

Invariant: items are in the order of the conversation, the prompt first. An item of an unknown type keeps its
type and has its JSON as text.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from nemo_gym.codec import encode_json
from nemo_gym.records import Record
from nemo_gym.types import RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME

OUTPUT_KEY_NAME = "output"
"""The field in which older files hold the conversation, as chat messages."""

ChatMessage = dict[str, Any]


class Item(NamedTuple):
    """A message, a reasoning text, a tool call or a tool output."""

    type: str
    """`message`, `reasoning`, `function_call`, `function_call_output`, or another type named by the item."""
    role: str | None = None
    text: str | None = None
    name: str | None = None
    """Name of the function."""
    arguments: str | None = None
    """Arguments of the call, as a JSON string."""
    call_id: str | None = None


def transcript(record: Record) -> list[Item]:
    """The prompt and everything after it. A prompt that the output repeats appears once."""
    prompt, output = prompt_items(record), output_items(record)
    return output if output[: len(prompt)] == prompt else prompt + output


def prompt_items(record: Record) -> list[Item]:
    params = record.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    if not isinstance(params, dict):
        return []
    instructions = params.get("instructions")
    system = [Item("message", "system", instructions)] if isinstance(instructions, str) else []
    return system + list(_items(params.get("input"), "user"))


def output_items(record: Record) -> list[Item]:
    """Everything after the prompt; older files have it at the top level."""
    response = record.get(RESPONSE_KEY_NAME)
    output = response.get(OUTPUT_KEY_NAME) if isinstance(response, dict) else None
    return list(_items(record.get(OUTPUT_KEY_NAME) if output is None else output, "assistant"))


def chat_messages(items: list[Item]) -> list[ChatMessage]:
    """Items as chat messages. Items that chat messages cannot express are left out."""
    messages: list[ChatMessage] = []
    for item in items:
        match item.type:
            case "message" if item.role == "assistant":
                _assistant_message(messages, *_ASSISTANT_PARTS[1:])["content"] = item.text
            case "message":
                messages.append({"role": item.role, "content": item.text})
            case "reasoning":
                _assistant_message(messages, *_ASSISTANT_PARTS)["reasoning_content"] = item.text
            case "function_call":
                _assistant_message(messages).setdefault("tool_calls", []).append(_tool_call(item))
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.text})
    return messages


_ASSISTANT_PARTS = ("reasoning_content", "content", "tool_calls")
"""In the order in which a model generates them."""


def _assistant_message(messages: list[ChatMessage], *filled: str) -> ChatMessage:
    """The assistant message that an item belongs to; a new one if the last one has one of these parts."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(key) is not None for key in filled):
        last = {"role": "assistant", "content": None}
        messages.append(last)
    return last


def _tool_call(item: Item) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _items(value: Any, speaker: str) -> Iterator[Item]:
    """Items of a conversation. `speaker` is the role of a plain string and of messages without a role."""
    if isinstance(value, str):
        yield Item("message", speaker, value)
    elif isinstance(value, list):
        for item in value:
            yield from _items_of(item, speaker)


def _items_of(item: Any, speaker: str) -> Iterator[Item]:
    if not isinstance(item, dict):
        yield Item("unknown", speaker, _text(item))
        return
    match item.get("type"):
        case "function_call":
            yield _call(item, item)
        case "function_call_output":
            yield _tool_output(item, item.get("output"), item.get("call_id"))
        case "reasoning":
            reasoning_text = _text(item.get("content")) or _text(item.get("summary"))
            yield Item("reasoning", "assistant", reasoning_text or "")
        case "message":
            yield from _message_items(item, speaker)
        case None if "role" in item or "content" in item:
            yield from _message_items(item, speaker)
        case kind:
            yield Item(_string(kind) or "unknown", _string(item.get("role")), _json(item))


def _message_items(message: Record, speaker: str) -> Iterator[Item]:
    """The items of a message of either API. A chat message may also hold reasoning and tool calls."""
    role, text = _string(message.get("role")) or speaker, _text(message.get("content"))
    if role in ("tool", "function"):
        yield _tool_output(message, message.get("content"), message.get("tool_call_id"))
        return
    reasoning_text = _text(message.get("reasoning_content") or message.get("reasoning"))
    if reasoning_text:
        yield Item("reasoning", "assistant", reasoning_text)
    calls = message.get("tool_calls") or [message.get("function_call")]
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if text or not calls:
        yield Item("message", role, _text(message.get("refusal")) if text is None else text)
    for call in calls:
        function = call.get("function")
        yield _call(call, function if isinstance(function, dict) else call)


def _call(call: Record, function: Record) -> Item:
    arguments = function.get("arguments")
    return Item(
        "function_call",
        "assistant",
        name=_string(function.get("name")),
        arguments=arguments if arguments is None or isinstance(arguments, str) else _json(arguments),
        call_id=_string(call.get("call_id")) or _string(call.get("id")),
    )


def _tool_output(item: Record, output: Any, call_id: Any) -> Item:
    name = _string(item.get("name"))
    return Item("function_call_output", "tool", _text(output), name, call_id=_string(call_id))


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _text(value: Any) -> str | None:
    """A string as it is, content parts joined, any other value as JSON."""
    if value is None or isinstance(value, str):
        return value
    is_parts = isinstance(value, list) and all(map(_is_part, value))
    return "".join(map(_part_text, value)) if is_parts else _json(value)


def _is_part(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and ("type" in value or "text" in value))


def _part_text(part: str | Record) -> str:
    """The text of a content part; a part without text, such as an image, is represented by its type."""
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else f"[{part.get('type', 'text')}]"


def _json(value: Any) -> str:
    try:
        return encode_json(value).decode()
    except RecursionError:
        return "[nested too deeply to show]"
