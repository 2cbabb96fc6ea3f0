"""Checks the messages of a request and converts them for the chat template: only text, and calls with valid
JSON arguments."""

import json
from typing import Any

from responses_api_models.local_model.request_parameters import BadParameterError

Message = dict[str, Any]


def checked_messages(messages: Any) -> list[Message]:
    """The messages in the form that a chat template expects."""
    if not isinstance(messages, list) or not messages:
        raise BadParameterError("messages: there are none; send at least one message")
    return [_rendered(message, f"messages[{position}]") for position, message in enumerate(messages)]


def _rendered(message: Any, where: str) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadParameterError(f"{where}: must be an object with a role")
    rendered = {**message, "content": _text(message.get("content"), where)}
    if message.get("tool_calls"):
        rendered["tool_calls"] = [_rendered_call(call, where) for call in message["tool_calls"]]
    return rendered


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadParameterError(f"{where}.content: must be a string or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text" if kind == "text" else "refusal") if kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise BadParameterError(f"{where}.content: local_model supports only text, not {kind!r}")
        texts.append(text)
    return "".join(texts)


def _rendered_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadParameterError(f"{where}.tool_calls: each must be a function call with a name")
    return {**call, "function": {**function, "arguments": _json_arguments(function.get("arguments"))}}


def _json_arguments(arguments: Any) -> str:
    """Valid JSON, which the engine requires; arguments that are not JSON become a JSON string."""
    if not arguments:
        return "{}"
    if not isinstance(arguments, str):
        return json.dumps(arguments)
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return json.dumps(arguments)
    return arguments
