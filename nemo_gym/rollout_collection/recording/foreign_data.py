"""JSON data from status files and servers, which may not be ours: made small and plain, read by field."""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

_DEEPEST = 4
_MOST_ITEMS = 1000
_LONGEST_TEXT = 2000
_LARGEST = 10**18
"""Numbers beyond this are not among those that we write, and can take minutes to print."""


def tamed(value: Any, depth: int = 0) -> Any:
    """The data without what no status contains: depth, length, huge numbers, NaN."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if -_LARGEST < value < _LARGEST else None  # also None for NaN
    if depth == _DEEPEST:
        return None
    if isinstance(value, Mapping):
        items = islice(value.items(), _MOST_ITEMS)
        return {str(key)[:_LONGEST_TEXT]: tamed(item, depth + 1) for key, item in items}
    return (
        [tamed(item, depth + 1) for item in islice(value, _MOST_ITEMS)] if isinstance(value, list) else None
    )


def text_of(data: Mapping[str, Any], key: str) -> str:
    """A text or a number; `?` if there is none."""
    value = data.get(key)
    return str(value) if isinstance(value, str | int | float) else "?"


def number_of(data: Mapping[str, Any], key: str) -> float | None:
    value = data.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def records_of(data: Any, key: str) -> list[dict[str, Any]]:
    """The mappings in a list."""
    values = data.get(key) if isinstance(data, Mapping) else None
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def numbers_of(data: Any, key: str) -> dict[str, float]:
    """The numbers in a mapping."""
    values = data.get(key) if isinstance(data, Mapping) else None
    found = values.items() if isinstance(values, Mapping) else ()
    return {
        name: number
        for name, number in found
        if isinstance(name, str) and isinstance(number, int | float) and math.isfinite(number)
    }


def counts_of(data: Any, key: str) -> dict[str, int]:
    """The whole numbers in a mapping."""
    values = data.get(key) if isinstance(data, Mapping) else None
    found = values.items() if isinstance(values, Mapping) else ()
    return {name: count for name, count in found if isinstance(name, str) and type(count) is int}
