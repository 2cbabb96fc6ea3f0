"""The numeric fields of one rollout."""

import math
from collections.abc import Mapping
from typing import Any

from nemo_gym.types import NON_FINITE_KEY_NAME, RESPONSE_KEY_NAME

Rollout = Mapping[str, Any]

# The exact type comes first: `isinstance` finds it at once, and runs for every field of every rollout.
_NUMBER = (float, int)
_OBJECT = (dict, Mapping)


def numeric_fields(rollout: Rollout, non_finite: list[str] | None = None) -> dict[str, float]:
    """The finite numbers of a rollout and of its token usage, without keys that begin with `_ng_`.

    The names of fields that are NaN, infinite or too large for a float are added to `non_finite`, also those
    that the record lists because they could not be written as JSON.
    """
    numbers: dict[str, float] = {}
    response = rollout.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, _OBJECT) else None
    if isinstance(usage, _OBJECT):
        _put_numbers(numbers, usage, non_finite)
    _put_numbers(numbers, rollout, non_finite)
    if non_finite is not None and NON_FINITE_KEY_NAME in rollout:
        non_finite += _listed(rollout[NON_FINITE_KEY_NAME], non_finite)
    return numbers


def row_numbers(row: Rollout) -> dict[str, float]:
    """The finite top-level numbers of a row, which a rollout may copy."""
    numbers: dict[str, float] = {}
    _put_numbers(numbers, row, None)
    return numbers


def _listed(names: object, known: list[str]) -> list[str]:
    """The fields that a record lists as not finite, without those that are already known."""
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str) and name not in known]


def _put_numbers(numbers: dict[str, float], fields: Mapping[str, Any], non_finite: list[str] | None) -> None:
    """Add the fields that are finite numbers; any other field removes an earlier number of the same name."""
    for name, value in fields.items():
        if isinstance(value, _NUMBER):
            if name.startswith("_ng_"):
                continue
            try:
                number = float(value)
            except OverflowError:  # an integer too large for a float
                number = math.inf
            if number - number == 0.0:
                numbers[name] = number
                continue
            if non_finite is not None:
                non_finite.append(name)
        numbers.pop(name, None)
