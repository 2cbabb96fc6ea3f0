"""Digests that identify conversations, computed from their prompts and generated items.

Invariant: all forms of a conversation have the same digests: text or parts, with or without ids, token ids,
empty messages and reasoning. Agents and converters may keep, change or drop these.
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
"""Fields that do not change the meaning of an item."""
_NOT_GENERATED = frozenset({"item_reference", "mcp_approval_response"})


class ItemContent(NamedTuple):
    """The part of an item that identifies a conversation."""

    content: bytes
    """The same for all forms of the item; empty if agents may drop the item."""
    is_generated: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a conversation: its first items are the prompt."""

    prompt: int
    """Digest of the prompt; depends on the order of its items."""
    digest: int
    """Digest of the prompt and of all items generated since; does not depend on their order."""
    runs: int
    """Runs of generated items after the prompt: one per model call if the agent changed nothing."""


def encoded(value: Any, option: int = 0) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return json.dumps(value, sort_keys=True).encode()


def decoded(data: bytes) -> Any:
    """JSON as data; raises ValueError. Accepts lone surrogates and NaN too, which orjson rejects."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def items_of(params: Mapping[str, Any]) -> list[Item]:
    """The conversation of a request: a string is a user message, instructions are a system message."""
    value = params.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else list(value or ())
    instructions = params.get("instructions")
    return [{"role": "system", "content": instructions}, *items] if instructions else items


def is_generated(item: Item) -> bool:
    """Whether a model generated the item, not a user, a tool or an agent."""
    kind = item.get("type") or "message"
    if kind == "message":
        return item.get("role") == "assistant"
    return not kind.endswith("_output") and kind not in _NOT_GENERATED


def contents_of(items: Iterable[Item]) -> list[ItemContent]:
    return [ItemContent(_content(item), is_generated(item)) for item in items]


def prompt_digest(items: Iterable[ItemContent]) -> int:
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for item in items:
        if item.content:
            hasher.update(item.content)
    return int.from_bytes(hasher.digest())


def prompt_size(items: Iterable[ItemContent]) -> int:
    """The number of items in a prompt, without those that agents may drop."""
    return sum(1 for item in items if item.content)


def continued(digest: int, items: Iterable[ItemContent]) -> int:
    """The digest of a conversation after more items: only generated ones change it."""
    for item in items:
        if item.is_generated and item.content:
            digest += int.from_bytes(blake2b(item.content, digest_size=_DIGEST_BYTES).digest())
    return digest & _MASK


def readings(items: Sequence[ItemContent], sizes: Collection[int]) -> list[Reading]:
    """All readings of a conversation whose prompt has one of these sizes, the longest prompt first.

    A prompt is followed by a generated item or by nothing.
    """
    found: list[Reading] = []
    hasher, size, longest = blake2b(digest_size=_DIGEST_BYTES), 0, max(sizes, default=0)
    if 0 in sizes and (not items or items[0].is_generated):
        found.append(_reading(int.from_bytes(hasher.digest()), items))
    for end, item in enumerate(items, 1):
        if item.content:
            hasher.update(item.content)
            size += 1
            if size in sizes and (end == len(items) or items[end].is_generated):
                found.append(_reading(int.from_bytes(hasher.digest()), items[end:]))
        if size == longest:
            break
    return found[::-1]


def first_reading(items: Sequence[ItemContent]) -> Reading:
    """The reading whose prompt is everything before the first generated item."""
    size = next((index for index, item in enumerate(items) if item.is_generated), len(items))
    return _reading(prompt_digest(items[:size]), items[size:])


def _reading(prompt: int, rest: Sequence[ItemContent]) -> Reading:
    runs, in_run = 0, False
    for item in rest:
        runs += item.is_generated and not in_run
        in_run = item.is_generated
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
    """The text of a string or of text parts; the list of parts if some are not text."""
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
