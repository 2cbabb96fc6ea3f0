"""What is wrong with the token fields of one output item, apart from what stands in the turn before it.

Invariant: fields without a defect cost a few passes at C speed; only what is wrong is looked at by value.
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
    "empty_generation": "there are prompt ids, and a generation without any",
    "bad_ids": "token ids that are no whole numbers from 0 on (of 32 bits)",
    "length_mismatch": "not as many log-probabilities as generated tokens",
    "nan_log_probs": "log-probabilities that are NaN (in JSON: null)",
    "infinite_log_probs": "log-probabilities that are infinite",
    "positive_log_probs": "log-probabilities above 0",
    "bad_log_probs": "log-probabilities that are no numbers",
}
"""Each with its meaning."""

_ID_TYPE = "I"
ID_BYTES = array(_ID_TYPE).itemsize
"""So many each id takes when packed."""
_LARGEST_ID = (1 << 8 * ID_BYTES) - 1

Defects = dict[Defect, int]
"""How many values each concerns, of those that were found."""


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """The ids of one output item, as bytes that begin and end like them; None for what is no list of ids."""

    prompt: bytes | None
    generation: bytes | None


def pack_tokens(item: Mapping[str, Any]) -> PackedTokens:
    return PackedTokens(_packed(item.get("prompt_token_ids")), _packed(item.get("generation_token_ids")))


def _packed(ids: Any) -> bytes | None:
    """One pass that both checks them and makes them fast to compare."""
    if not isinstance(ids, list):
        return None
    try:
        packed = array(_ID_TYPE, ids)
    except (TypeError, OverflowError):
        return None
    return None if _has_flags(ids, packed) else packed.tobytes()


def _has_flags(ids: list[Any], packed: "array[int]") -> bool:
    """Whether a `true` or `false` is among them, which an array takes for 1 or 0."""
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
        values = np.frombuffer(array("d", log_probs))  # an array refuses what is no number
        if values.max() <= 0 and values.min() > -math.inf:  # neither holds where one is NaN
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
    except OverflowError:  # a whole number beyond the range of a float
        return False
