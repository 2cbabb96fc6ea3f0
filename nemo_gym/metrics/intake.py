"""Rollouts by the million into columns: one of a shape that was seen before needs no look at its fields.

The shape of a rollout is the names and types of its fields and of its token usage.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from nemo_gym.metrics.columns import Columns
from nemo_gym.metrics.fields import numeric_fields
from nemo_gym.types import ATTEMPT_INDEX_KEY_NAME, RESPONSE_KEY_NAME

Append = Callable[[float], None]
Record = dict[str, Any]

_MOST_SHAPES = 4096
_NO_USAGE: Record = {}
_NUMBERS = {int, float, bool}


class _Plan(NamedTuple):
    """Where the numbers of rollouts of one shape go."""

    own: list[tuple[str, Append]]
    usage: list[tuple[str, Append]]
    missing: list[Append]
    """Of the columns that such rollouts have no value for."""


class Intake:
    """Takes rollouts into the columns of their agent."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def take(self, task: int, rollout: int, record: Record) -> None:
        """A rollout with numbers of any kind."""
        odd: list[str] = []
        numbers, known = numeric_fields(record, odd), len(self.columns.names)
        self.columns.add(task, rollout, numbers, odd, bool(record.get(ATTEMPT_INDEX_KEY_NAME)))
        if len(self.columns.names) > known:
            self._plans.clear()

    def take_finite(self, task: int, rollout: int, record: Record) -> None:
        """A rollout all of whose numbers are finite floats or fit into one, as orjson reads them."""
        response = record.get(RESPONSE_KEY_NAME)
        usage = response.get("usage") if type(response) is dict else None
        if type(usage) is not dict:
            usage = _NO_USAGE
        shape = (*record, *map(type, record.values()), *usage, *map(type, usage.values()))
        plan = self._plans.get(shape)
        if plan is None:
            self.take(task, rollout, record)
            self._plan(shape, record, usage)
            return
        columns = self.columns
        if record.get(ATTEMPT_INDEX_KEY_NAME):
            columns.retried.append(len(columns))
        columns.tasks.append(task)
        columns.rollouts.append(rollout)
        for name, append in plan.own:
            append(record[name])
        for name, append in plan.usage:
            append(usage[name])
        for append in plan.missing:
            append(math.nan)

    def _plan(self, shape: tuple[Any, ...], record: Record, usage: Record) -> None:
        """Remember where the numbers of this shape go; that holds until there is a new column."""
        if len(self._plans) >= _MOST_SHAPES:
            self._plans.clear()
        appends = self.columns.appends()
        own = [name for name in record if _is_number(name, record)]
        others = [name for name in usage if _is_number(name, usage) and name not in record]
        known = {*own, *others}
        self._plans[shape] = _Plan(
            [(name, appends[name]) for name in own],
            [(name, appends[name]) for name in others],
            [append for name, append in appends.items() if name not in known],
        )


def _is_number(name: str, fields: Record) -> bool:
    return type(fields[name]) in _NUMBERS and not name.startswith("_ng_")
