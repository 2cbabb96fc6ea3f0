"""Adds rollouts to columns. Rollouts with the same fields are added field by field, which is much faster."""

from array import array
from collections import deque
from collections.abc import Container, Sequence
from operator import itemgetter
from typing import Any

from nemo_gym.metrics.columns import Columns
from nemo_gym.metrics.numeric_fields import numeric_fields
from nemo_gym.types import ATTEMPT_INDEX_KEY_NAME, NON_FINITE_KEY_NAME, RESPONSE_KEY_NAME

Record = dict[str, Any]

_NUMBERS = {int, float, bool}


class Intake:
    """Adds rollouts to the columns of their agent."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def take(self, task: int, rollout: int, record: Record) -> None:
        """Add one rollout; its numbers need not be finite."""
        non_finite: list[str] = []
        numbers = numeric_fields(record, non_finite)
        self.columns.add(task, rollout, numbers, non_finite, bool(record.get(ATTEMPT_INDEX_KEY_NAME)))
        self.columns.tool_use.take(record)

    def take_finite(self, tasks: Sequence[int], rollouts: Sequence[int], records: Sequence[Record]) -> None:
        """Add rollouts whose numbers are all finite and fit into a float, as in JSON that orjson has parsed.

        They may be added in another order.
        """
        numbers = self._numbers_of(records)
        if numbers is not None:
            self.columns.add_many(tasks, rollouts, numbers)
            self.columns.tool_use.take_many(records)
            return
        shapes: dict[tuple[Any, ...], list[int]] = {}
        for place, record in enumerate(records):
            shapes.setdefault(_shape(record), []).append(place)
        if len(shapes) > 1:
            for places in shapes.values():
                self.take_some(places, tasks, rollouts, records)
            return
        for task, rollout, record in zip(tasks, rollouts, records, strict=True):
            self.take(task, rollout, record)

    def take_some(
        self, places: list[int], tasks: Sequence[int], rollouts: Sequence[int], records: Sequence[Record]
    ) -> None:
        """Like `take_finite`, for the rollouts at these positions only."""
        self.take_finite(
            [tasks[place] for place in places],
            [rollouts[place] for place in places],
            [records[place] for place in places],
        )

    def _numbers_of(self, records: Sequence[Record]) -> "dict[str, array[float]] | None":
        """The numbers by field; None if the rollouts have different fields or a field is new."""
        if ATTEMPT_INDEX_KEY_NAME in records[0] or NON_FINITE_KEY_NAME in records[0]:
            return None
        found: dict[str, array[float]] = {}
        try:
            usages = _usages(records)
            is_alike = not usages or self._put(found, usages, hidden_by=records[0])
            return found if is_alike and self._put(found, records) else None
        except (KeyError, TypeError, OverflowError):  # a field is missing or not a number
            return None

    def _put(
        self, found: "dict[str, array[float]]", records: Sequence[Record], hidden_by: Container[str] = ()
    ) -> bool:
        """Add the numbers of every field; False if the records have different fields or a new one."""
        first = records[0]
        if set(map(len, records)) != {len(first)}:
            return False
        for name, value in first.items():
            values = map(itemgetter(name), records)
            if name.startswith("_ng_") or name in hidden_by:
                deque(values, 0)  # raises if a record does not have it
            elif type(value) not in _NUMBERS:
                if not _NUMBERS.isdisjoint(map(type, values)):
                    return False
            elif name in self.columns:
                found[name] = array("d", values)
            else:
                return False
        return True


def _shape(record: Record) -> tuple[Any, ...]:
    """The names and types of a rollout's fields and of its token usage."""
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if type(response) is dict else None
    fields = (*record, *map(type, record.values()))
    return (*fields, *usage, *map(type, usage.values())) if type(usage) is dict else (*fields, usage is None)


def _usages(records: Sequence[Record]) -> list[Record]:
    """The token usage of each rollout; empty if none has one. Raises an exception if only some have one."""
    if RESPONSE_KEY_NAME not in records[0]:
        return []
    responses = list(map(itemgetter(RESPONSE_KEY_NAME), records))
    if set(map(type, responses)) != {dict}:
        raise TypeError("a response is not an object")
    if "usage" not in responses[0]:
        if any("usage" in response for response in responses):
            raise KeyError("usage")
        return []
    usages = list(map(itemgetter("usage"), responses))
    if set(map(type, usages)) != {dict}:
        raise TypeError("a usage is not an object")
    return usages
