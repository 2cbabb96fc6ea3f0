"""The numbers of many rollouts in little memory: 8 bytes a field a rollout.

Invariant: every column is as long as there are rollouts; NaN stands where a rollout has no such field.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nemo_gym.metrics.baseline import Labels, put_statistics
from nemo_gym.types import TASK_INDEX_KEY_NAME


class Columns:
    """The numbers of one agent's rollouts."""

    def __init__(self) -> None:
        self.tasks = array("q")
        """The task index of each rollout, in the order they were added."""
        self.rollouts = array("q")
        """The rollout index of each."""
        self._columns: dict[str, _Column] = {}

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def names(self) -> list[str]:
        """The fields, in order of first sight."""
        return list(self._columns)

    def add(self, task: int, rollout: int, numbers: Mapping[str, float]) -> None:
        """Keep the (finite) numbers of one rollout."""
        columns = self._columns
        self.tasks.append(task)
        self.rollouts.append(rollout)
        for name, number in numbers.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = _Column(name, len(self.tasks) - 1)
            column.values.append(number)
            column.total += number
            column.count += 1
        if len(columns) > len(numbers):
            for name, column in columns.items():
                if name not in numbers:
                    column.values.append(math.nan)

    def extend(self, other: "Columns") -> None:
        """Add the rollouts of another part."""
        before = len(self.tasks)
        self.tasks.extend(other.tasks)
        self.rollouts.extend(other.rollouts)
        for name, theirs in other._columns.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column(name, before)
            column.values.extend(theirs.values)
            column.total += theirs.total
            column.count += theirs.count
        for name, column in self._columns.items():
            if name not in other._columns:
                column.values.extend(array("d", [math.nan]) * len(other))

    def feed(self, take: Callable[["bytes | array[Any]"], object]) -> None:
        """Give all that is here, piece by piece, to something like a digest."""
        for numbers in (self.tasks, self.rollouts):
            take(numbers)
        for name, column in self._columns.items():
            take(name.encode("utf-8", "surrogatepass") + b"\0")
            take(column.values)

    def mean(self, name: str) -> float | None:
        """The mean so far, near enough to show; None where there is none."""
        column = self._columns.get(name)
        mean = column.total / column.count if column is not None else math.nan
        return mean if math.isfinite(mean) else None

    def statistics(self) -> dict[str, float]:
        """`mean/`, `max/`, `min/`, `median/` and `std/` of every field, over all rollouts."""
        results: dict[str, float] = {}
        for column in self._columns.values():
            put_statistics(results, column.labels, [value for value in column.values if value == value])
        return results

    def groups(self) -> Iterator[dict[str, Any]]:
        """The same for each task, with its index, in the order of the indices."""
        size = len(self)
        # Task and place in one number: a sorted list of them takes half the memory of one with sort keys.
        places = sorted(task * size + place for place, task in enumerate(self.tasks))
        columns = [(column.labels, column.values) for column in self._columns.values()]
        first = 0
        while first < size:
            task, place = divmod(places[first], size)
            end, task_end = first + 1, (task + 1) * size
            while end < size and places[end] < task_end:
                end += 1
            group: dict[str, Any] = {TASK_INDEX_KEY_NAME: task}
            if end == first + 1:
                _put_one(group, columns, place)
            else:
                members = [place % size for place in places[first:end]]
                for labels, column in columns:
                    values = [value for place in members if (value := column[place]) == value]
                    if values:
                        put_statistics(group, labels, values)
            yield group
            first = end


def _put_one(group: dict[str, Any], columns: list[tuple[Labels, "array[float]"]], place: int) -> None:
    """What `put_statistics` says of one value: most groups of a large run have no more."""
    for (mean, largest, smallest, median, std), column in columns:
        value = column[place]
        if value == value:
            group[mean] = group[largest] = group[smallest] = group[median] = value
            group[std] = 0.0


class _Column:
    """One field of every rollout."""

    __slots__ = ("count", "labels", "total", "values")

    def __init__(self, name: str, missing: int) -> None:
        self.labels = Labels.of(name)
        self.values = array("d", [math.nan]) * missing
        self.total = 0.0
        self.count = 0
