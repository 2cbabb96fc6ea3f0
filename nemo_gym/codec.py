"""JSON encoding and decoding, used everywhere. Falls back to Python's codec if the fast one refuses.

Invariant: data that JSON can represent is unchanged after encoding and decoding, including large integers.
"""

import json
from datetime import date, datetime, time
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json


def encode_json(value: Any) -> bytes:
    """Plain data or a pydantic model as JSON. Only fields set on a model are included; NaN becomes null."""
    try:
        if isinstance(value, BaseModel):
            return value.model_dump_json(exclude_unset=True).encode()
        return orjson.dumps(value, default=_plain)
    except (TypeError, PydanticSerializationError):
        return _encode_slowly(value)


def decode_json(data: bytes | str) -> Any:
    """JSON as plain data. Also accepts NaN and Infinity, which Python writes."""
    try:
        # Not orjson: it reads integers beyond 64 bits as floats.
        return from_json(data, cache_strings="keys")
    except ValueError:
        return json.loads(data)


def _encode_slowly(value: Any) -> bytes:
    """For keys that are not strings, integers beyond 64 bits, and text with a lone surrogate."""
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
