"""Parses the text that a model generated into reasoning, text and tool calls.

Reads the markup that most open models are trained on: `<think>…</think>` and, once per call,
`<tool_call>{"name": …, "arguments": …}</tool_call>`. Malformed markup stays in the text, where verifiers and
people can see it.
"""

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nemo_gym.formats.reasoning import split_reasoning

CALL_BEGIN = "<tool_call>"
CALL_END = "</tool_call>"


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is JSON in a string."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Generated:
    """One parsed generation."""

    reasoning: str | None
    text: str
    calls: list[Call] = field(default_factory=list)

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls in the form of a chat message, each with a new id."""
        return [
            {
                "id": f"call_{uuid4().hex}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.calls
        ]


def parse_generated(text: str, *, tools_offered: bool) -> Generated:
    """Parse a generation. If the request offers no tools, it contains no calls."""
    reasoning, text = split_reasoning(text)
    if not tools_offered or CALL_BEGIN not in text:
        return Generated(reasoning, text)
    kept, *pieces = text.split(CALL_BEGIN)
    calls: list[Call] = []
    for piece in pieces:
        written, end, rest = piece.partition(CALL_END)
        call = _call(written)
        if call is None:
            kept += CALL_BEGIN + written + end + rest
        else:
            calls.append(call)
            kept += rest
    return Generated(reasoning, kept if kept.strip() or not calls else "", calls)


def _call(written: str) -> Call | None:
    try:
        call: Any = json.loads(written, parse_constant=_reject_constant)
        json.dumps(call, ensure_ascii=False).encode()  # fails if an escape is half a surrogate pair
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # JSON within JSON
        return Call(call["name"], arguments)
    if not isinstance(arguments, dict):
        return None
    return Call(call["name"], json.dumps(arguments, ensure_ascii=False))


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
