"""Converts token counts in both directions. Counts that only one API has keep their names."""

from typing import Any, Literal

Usage = dict[str, Any]

_COUNTS = {
    "responses": ("input_tokens", "output_tokens", "total_tokens"),
    "chat_completions": ("prompt_tokens", "completion_tokens", "total_tokens"),
}
"""The names of the counts: prompt, generation, and both together."""
_INTS = {int}

_CHAT = {
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
}
_RESPONSES = {
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "input_tokens_details",
    "output_tokens_details",
}


def responses_usage(usage: Any) -> Usage:
    """The usage of a chat completion, for a model response; all zeros if the endpoint sent none."""
    if not isinstance(usage, dict):
        usage = {}
    given, generated = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    counts = {
        "input_tokens": given,
        "input_tokens_details": _details(usage.get("prompt_tokens_details"), "cached_tokens"),
        "output_tokens": generated,
        "output_tokens_details": _details(usage.get("completion_tokens_details"), "reasoning_tokens"),
        "total_tokens": _count(usage, "total_tokens") or given + generated,
    }
    return _with_others(counts, usage, _CHAT)


def chat_usage(usage: Any) -> Usage:
    """The usage of a model response, for a chat completion; all zeros if there is none."""
    if not isinstance(usage, dict):
        usage = {}
    given, generated = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    counts = {
        "prompt_tokens": given,
        "prompt_tokens_details": _details(usage.get("input_tokens_details"), "cached_tokens"),
        "completion_tokens": generated,
        "completion_tokens_details": _details(usage.get("output_tokens_details"), "reasoning_tokens"),
        "total_tokens": _count(usage, "total_tokens") or given + generated,
    }
    return _with_others(counts, usage, _RESPONSES)


def filled_usage(usage: Any, api: Literal["responses", "chat_completions"]) -> Any:
    """`usage` with all its counts: a missing count is zero, a missing total the sum of the others."""
    if not usage:
        return responses_usage(None) if api == "responses" else chat_usage(None)
    given, generated, total = names = _COUNTS[api]
    if not isinstance(usage, dict) or {*map(type, map(usage.get, names))} == _INTS:
        return usage
    counts = {name: _count(usage, name) for name in names}
    counts[total] = counts[total] or counts[given] + counts[generated]
    return {**usage, **counts}


def _count(usage: Usage, name: str) -> int:
    count = usage.get(name)
    return count if isinstance(count, int) else 0


def _details(details: Any, name: str) -> Usage:
    """`details` with the count `name`, which readers rely on; a null count is zero."""
    if not isinstance(details, dict):
        return {name: 0}
    return {**details, name: details.get(name) or 0}


def _with_others(counts: Usage, usage: Usage, known: set[str]) -> Usage:
    for key, value in usage.items():
        if key not in known and value is not None:
            counts[key] = value
    return counts
