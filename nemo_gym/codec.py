"""JSON to and from bytes, the one way everywhere: orjson, with Python's own codec where orjson refuses."""

import json
from typing import Any

import orjson
from pydantic import BaseModel


def encode_json(value: Any) -> bytes:
    """Plain data or a pydantic model as JSON. A model sends what was set on it; NaN becomes null."""
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_unset=True).encode()
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:
        # Keys that are not strings; text with half a surrogate pair, which orjson refuses.
        text = json.dumps(value, default=_plain, separators=(",", ":"))
        return text.encode()


def decode_json(data: bytes | str) -> Any:
    """JSON as plain data. NaN and Infinity, which Python's writers emit, are read too."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON data")
