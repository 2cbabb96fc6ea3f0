"""Defects in the token fields of one output item, checked without the previous turn.

Invariant: fields without a defect cost a few passes at C speed; only others are read value by value.
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nemo_gym.types import TOKEN_FIELDS

Defect = Literal[
    "partial_bundle",
    "empty_generation",
    "bad_ids",
    "length_mismatch",
    "nan_log_probs",
    "infinite_log_probs",
    "positive_log_probs",
    "bad_log_probs",
]

DEFECTS: dict[Defect, str] = {
    "partial_bundle": "some of the three token fields are missing or null",
    "empty_generation": "prompt ids without any generated ids",
    "bad_ids": "token ids that are not integers from 0 to 2^32 - 1",
    "length_mismatch": "the number of log-probabilities differs from the number of generated tokens",
    "nan_log_probs": "log-probabilities that are NaN (in JSON: null)",
    "infinite_log_probs": "log-probabilities that are infinite",
    "positive_log_probs": "log-probabilities above 0",
    "bad_log_probs": "log-probabilities that are not numbers",
}
"""Meaning of each defect."""

_ID_TYPE = "I"
ID_BYTES = array(_ID_TYPE).itemsize
"""Bytes per packed id."""
_LARGEST_ID = (1 << 8 * ID_BYTES) - 1

Defects = dict[Defect, int]
"""Number of affected values by defect."""


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """The ids of one output item as bytes, for quick comparison; None for a field without a list of ids."""

    prompt: bytes | None
    generation: bytes | None


def pack_tokens(item: Mapping[str, Any]) -> PackedTokens:
    return PackedTokens(_packed(item.get("prompt_token_ids")), _packed(item.get("generation_token_ids")))


def _packed(ids: Any) -> bytes | None:
    """Pack and check ids in one pass."""
    if not isinstance(ids, list):
        return None
    try:
        packed = array(_ID_TYPE, ids)
    except (TypeError, OverflowError):
        return None
    return None if _has_flags(ids, packed) else packed.tobytes()


def _has_flags(ids: list[Any], packed: "array[int]") -> bool:
    """Whether the ids contain `true` or `false`, which an array stores as 1 or 0."""
    if not ids:
        return False
    places = np.flatnonzero(np.frombuffer(packed, np.uintc) <= 1)
    return any(type(ids[place]) is bool for place in places.tolist())


def defects_of(item: Mapping[str, Any], tokens: PackedTokens) -> Defects:
    """The defects of an item with these tokens."""
    prompt, generation, log_probs = (item.get(field) for field in TOKEN_FIELDS)
    missing = (prompt is None) + (generation is None) + (log_probs is None)
    if missing == len(TOKEN_FIELDS):
        return {}
    found: Defects = {"partial_bundle": missing} if missing else {}
    if prompt and tokens.generation == b"":
        found["empty_generation"] = 1
    if tokens.prompt is None or tokens.generation is None:
        wrong = _wrong_ids(prompt) + _wrong_ids(generation)
        if wrong:
            found["bad_ids"] = wrong
    if log_probs is not None:
        found |= _log_prob_defects(log_probs)
        if isinstance(log_probs, list) and isinstance(generation, list) and len(log_probs) != len(generation):
            found["length_mismatch"] = abs(len(log_probs) - len(generation))
    return found


def _wrong_ids(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, list):
        return 1
    return sum(type(number) is not int or not 0 <= number <= _LARGEST_ID for number in value)


def _log_prob_defects(log_probs: Any) -> Defects:
    if not isinstance(log_probs, list):
        return {"bad_log_probs": 1}
    if not log_probs:
        return {}
    try:
        values = np.frombuffer(array("d", log_probs))  # an array refuses values that are not numbers
        if values.max() <= 0 and values.min() > -math.inf:  # both are false if a value is NaN
            return {}
    except (TypeError, OverflowError):
        pass
    found: Defects = {}
    for value in log_probs:
        defect = _log_prob_defect(value)
        if defect is not None:
            found[defect] = found.get(defect, 0) + 1
    return found


def _log_prob_defect(value: Any) -> Defect | None:
    if value is None:
        return "nan_log_probs"
    if type(value) not in (float, int):
        return "bad_log_probs"
    if value != value:
        return "nan_log_probs"
    if not _is_finite(value):
        return "infinite_log_probs"
    return "positive_log_probs" if value > 0 else None


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        return False
