"""The messages of a request, checked: text alone, and calls whose arguments a template can show."""

import json
from typing import Any

from responses_api_models.local_model.request_parameters import BadParameterError

Message = dict[str, Any]


def checked_messages(messages: Any) -> list[Message]:
    """The messages as a chat template takes them."""
    if not isinstance(messages, list) or not messages:
        raise BadParameterError("messages: there is nothing to answer; send one message at least")
    return [_as_shown(message, f"messages[{position}]") for position, message in enumerate(messages)]


def _as_shown(message: Any, where: str) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadParameterError(f"{where}: must be an object with a role")
    shown = {**message, "content": _text(message.get("content"), where)}
    if message.get("tool_calls"):
        shown["tool_calls"] = [_shown_call(call, where) for call in message["tool_calls"]]
    return shown


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadParameterError(f"{where}.content: must be a text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text" if kind == "text" else "refusal") if kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise BadParameterError(f"{where}.content: local_model reads text alone, not {kind!r}")
        texts.append(text)
    return "".join(texts)


def _shown_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadParameterError(f"{where}.tool_calls: each must call a function by its name")
    return {**call, "function": {**function, "arguments": _shown_arguments(function.get("arguments"))}}


def _shown_arguments(arguments: Any) -> str:
    """As JSON, which the engine wants; what a model wrote that is none is shown as a text."""
    if not arguments:
        return "{}"
    if not isinstance(arguments, str):
        return json.dumps(arguments)
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return json.dumps(arguments)
    return arguments
