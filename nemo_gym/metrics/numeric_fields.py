"""The numeric fields of one rollout."""

import math
from collections.abc import Mapping
from typing import Any

from nemo_gym.types import NON_FINITE_KEY_NAME, RESPONSE_KEY_NAME

Rollout = Mapping[str, Any]

# As tuples: a plain dict is told at once, and these are asked for every field of every rollout.
_NUMBER = (float, int)
_OBJECT = (dict, Mapping)


def numeric_fields(rollout: Rollout, odd: list[str] | None = None) -> dict[str, float]:
    """A rollout's own numbers and its token usage; keys that begin with `_ng_` are not among them.

    Nor is what no float holds, NaN and infinities among it; the names of those are added to `odd`, those that
    were so before the rollout was written among them.
    """
    numbers: dict[str, float] = {}
    response = rollout.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, _OBJECT) else None
    if isinstance(usage, _OBJECT):
        _put_numbers(numbers, usage, odd)
    _put_numbers(numbers, rollout, odd)
    if odd is not None and NON_FINITE_KEY_NAME in rollout:
        odd += _noted(rollout[NON_FINITE_KEY_NAME], odd)
    return numbers


def _noted(names: object, known: list[str]) -> list[str]:
    """The fields that a rollout says were not finite; too large a whole number says so itself."""
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str) and name not in known]


def _put_numbers(numbers: dict[str, float], fields: Mapping[str, Any], odd: list[str] | None) -> None:
    """Add the fields that are finite numbers; a field that is none hides what has its name already."""
    for name, value in fields.items():
        if isinstance(value, _NUMBER):
            if name.startswith("_ng_"):
                continue
            try:
                number = float(value)
            except OverflowError:  # a whole number beyond every float
                number = math.inf
            if number - number == 0.0:
                numbers[name] = number
                continue
            if odd is not None:
                odd.append(name)
        numbers.pop(name, None)
