"""What makes two conversations the same: digests of prompts and of what a model said.

Invariant: the forms of one conversation have the same digests: a text or its parts, with or without ids,
token ids, empty messages and reasoning, which agents and converters keep, change or drop.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

Item = dict[str, Any]

_DIGEST_BYTES = 8
_MASK = (1 << 8 * _DIGEST_BYTES) - 1
_VOLATILE = frozenset(
    {"id", "status", "prompt_token_ids", "generation_token_ids", "generation_log_probs"}
    | {"generation_log_probs_mode"}
)
"""Fields that say nothing about what an item means."""
_NOT_GENERATED = frozenset({"item_reference", "mcp_approval_response"})


class Said(NamedTuple):
    """One item of a conversation, as far as it counts."""

    content: bytes
    """The same for all forms of the item; empty where others may drop it."""
    is_generated: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A conversation with one of its beginnings taken as the prompt."""

    prompt: int
    """Digest of the prompt, in which order counts."""
    key: int
    """Digest of the prompt and of all that the model said since, in any order."""
    runs: int
    """Runs of generated items after the prompt: the model calls, if nothing was changed."""


def encoded(value: Any, option: int = 0) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # whole numbers beyond 64 bits, half a surrogate pair
        return json.dumps(value, sort_keys=True).encode()


def decoded(data: bytes) -> Any:
    """JSON as data; raises ValueError. Half surrogate pairs and NaN, which orjson refuses, are read too."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def items_of(params: Mapping[str, Any]) -> list[Item]:
    """The conversation of a request: a text is a user message, instructions are a system message."""
    given = params.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
    instructions = params.get("instructions")
    return [{"role": "system", "content": instructions}, *items] if instructions else items


def is_generated(item: Item) -> bool:
    """Whether a model wrote the item, not a user, a tool or an agent."""
    kind = item.get("type") or "message"
    if kind == "message":
        return item.get("role") == "assistant"
    return not kind.endswith("_output") and kind not in _NOT_GENERATED


def heard(items: Iterable[Item]) -> list[Said]:
    return [Said(_content(item), is_generated(item)) for item in items]


def prompt_digest(said: Iterable[Said]) -> int:
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for one in said:
        if one.content:
            hasher.update(one.content)
    return int.from_bytes(hasher.digest())


def prompt_size(said: Iterable[Said]) -> int:
    """How many items of a prompt count."""
    return sum(1 for one in said if one.content)


def continued(key: int, said: Iterable[Said]) -> int:
    """The key of a conversation after more was said: only what the model generated counts."""
    for one in said:
        if one.is_generated and one.content:
            key += int.from_bytes(blake2b(one.content, digest_size=_DIGEST_BYTES).digest())
    return key & _MASK


def readings(said: Sequence[Said], sizes: Collection[int]) -> list[Reading]:
    """Every way to take a prompt of one of these sizes off the conversation, the longest first.

    What follows a prompt begins with something that the model said, so all else is no reading.
    """
    found: list[Reading] = []
    hasher, size, longest = blake2b(digest_size=_DIGEST_BYTES), 0, max(sizes, default=0)
    if 0 in sizes and (not said or said[0].is_generated):
        found.append(_reading(int.from_bytes(hasher.digest()), said))
    for place, one in enumerate(said, 1):
        if one.content:
            hasher.update(one.content)
            size += 1
            if size in sizes and (place == len(said) or said[place].is_generated):
                found.append(_reading(int.from_bytes(hasher.digest()), said[place:]))
        if size == longest:
            break
    return found[::-1]


def first_reading(said: Sequence[Said]) -> Reading:
    """The conversation with all before the first generated item as its prompt."""
    size = next((place for place, one in enumerate(said) if one.is_generated), len(said))
    return _reading(prompt_digest(said[:size]), said[size:])


def _reading(prompt: int, rest: Sequence[Said]) -> Reading:
    runs, goes_on = 0, False
    for one in rest:
        runs += one.is_generated and not goes_on
        goes_on = one.is_generated
    return Reading(prompt, continued(prompt, rest), runs)


def _content(item: Item) -> bytes:
    kind = item.get("type") or "message"
    if kind == "message":
        content, role = _text(item.get("content")), item.get("role")
        return b"" if role == "assistant" and not content else _encoded([kind, role, content])
    if kind == "function_call":
        return _encoded([kind, item.get("name"), _arguments(item.get("arguments"))])
    if kind == "function_call_output":
        return _encoded([kind, _text(item.get("output"))])
    if kind == "reasoning":
        return b""
    return _encoded([kind, {name: item[name] for name in item.keys() - _VOLATILE}])


def _text(content: Any) -> Any:
    """A text, whether it came as one or in parts; with other parts among them, the list."""
    if not isinstance(content, list):
        return content or ""
    parts = [_part(part) for part in content]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else parts


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else part


def _arguments(text: Any) -> Any:
    try:
        return orjson.loads(text)
    except (TypeError, ValueError):
        return text


def _encoded(value: Any) -> bytes:
    return encoded(value, orjson.OPT_SORT_KEYS)
