"""JSON to and from bytes, the one way everywhere; Python's own codec where the fast one refuses.

Invariant: what JSON can say comes back as it was; a whole number of any size stays exact.
"""

import json
from datetime import date, datetime, time
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json


def encode_json(value: Any) -> bytes:
    """Plain data or a pydantic model as JSON. A model sends what was set on it; NaN becomes null."""
    try:
        if isinstance(value, BaseModel):
            return value.model_dump_json(exclude_unset=True).encode()
        return orjson.dumps(value, default=_plain)
    except (TypeError, PydanticSerializationError):
        return _encode_slowly(value)


def decode_json(data: bytes | str) -> Any:
    """JSON as plain data. NaN and Infinity, which Python's writers emit, are read too."""
    try:
        # Not orjson: it makes a float of a whole number beyond 64 bits.
        return from_json(data, cache_strings="keys")
    except ValueError:
        return json.loads(data)


def _encode_slowly(value: Any) -> bytes:
    """For keys that are not strings, whole numbers beyond 64 bits, text with half a surrogate pair."""
    text = json.dumps(value, default=_plain)
    finite = json.loads(text, parse_constant=lambda _: None)
    return json.dumps(finite, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON data")
