"""The numbers of many rollouts in little memory: 8 bytes per field and rollout.

Invariant: every column has one value per rollout, NaN if the rollout does not have the field. Values that are
missing, NaN or infinite are left out of all statistics. A statistic too large for a float is left out too.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.statistics import ByTask, Floats, Statistics, of_rows, overall
from nemo_gym.metrics.tool_use import ToolUse
from nemo_gym.metrics.uncertainty import Estimate, Range, around
from nemo_gym.types import TASK_INDEX_KEY_NAME

REWARD = "reward"
LABELS = ("mean", "max", "min", "median", "std")
"""The statistics of every field, reported as `<label>/<field>`."""
NON_FINITE = "non_finite"
"""The label of the number of values that were NaN or infinite, if there were any."""


class Columns:
    """The numbers of one agent's rollouts."""

    def __init__(self) -> None:
        self.tasks = array("q")
        """The task index of each rollout, in the order they were added."""
        self.rollouts = array("q")
        """The rollout index of each rollout."""
        self.retried = array("q")
        """The positions of the rollouts that needed more than one attempt."""
        self.non_finite: Counter[str] = Counter()
        """How many values of each field were NaN or infinite."""
        self.copied: Counter[str] = Counter()
        """How many values of each field equal that of the row, as far as the rows are known."""
        self.tool_use = ToolUse()
        self._columns: dict[str, array[float]] = {}
        self._means: dict[str, _Running] = {}

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def names(self) -> list[str]:
        """The fields, in the order of their first appearance."""
        return list(self._columns)

    def values(self, name: str) -> "array[float]":
        """One field of every rollout, NaN if it is missing."""
        column = self._columns.get(name)
        return column if column is not None else array("d", [math.nan]) * len(self)

    def add(
        self,
        task: int,
        rollout: int,
        numbers: Mapping[str, float],
        non_finite: Sequence[str] = (),
        is_retried: bool = False,
        copied: Sequence[str] = (),
    ) -> None:
        """Add the finite numbers of one rollout. `non_finite` names its fields that are NaN or infinite,
        `copied` those that have the value of the row."""
        columns = self._columns
        if is_retried:
            self.retried.append(len(self.tasks))
        if non_finite:
            self.non_finite.update(non_finite)
        if copied:
            self.copied.update(copied)
        self.tasks.append(task)
        self.rollouts.append(rollout)
        for name, number in numbers.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = array("d", [math.nan]) * (len(self.tasks) - 1)
            column.append(number)
        if len(columns) > len(numbers):
            for name, column in columns.items():
                if name not in numbers:
                    column.append(math.nan)

    def __contains__(self, name: object) -> bool:
        """Whether any rollout has this field."""
        return name in self._columns

    def add_many(
        self, tasks: Sequence[int], rollouts: Sequence[int], numbers: "Mapping[str, array[float]]"
    ) -> None:
        """Add rollouts that needed one attempt each, have the same fields, and have no new field."""
        self.tasks.extend(tasks)
        self.rollouts.extend(rollouts)
        for name, column in self._columns.items():
            column.extend(numbers[name] if name in numbers else array("d", [math.nan]) * len(tasks))

    def extend(self, other: "Columns") -> None:
        """Add the rollouts of other columns."""
        before = len(self.tasks)
        self.tasks.extend(other.tasks)
        self.rollouts.extend(other.rollouts)
        self.retried.extend(array("q", [place + before for place in other.retried]))
        self.non_finite.update(other.non_finite)
        self.copied.update(other.copied)
        self.tool_use.extend(other.tool_use)
        for name, theirs in other._columns.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("d", [math.nan]) * before
            column.extend(theirs)
        for name, column in self._columns.items():
            if name not in other._columns:
                column.extend(array("d", [math.nan]) * len(other))

    def feed(self, take: Callable[["bytes | array[Any]"], object]) -> None:
        """Pass the whole content, piece by piece, to a function such as the `update` of a digest."""
        for numbers in (self.tasks, self.rollouts, self.retried):
            take(numbers)
        for names in (sorted(self.non_finite.items()), sorted(self.copied_names())):
            take(repr(names).encode("utf-8", "surrogatepass"))
        self.tool_use.feed(take)
        for name, column in self._columns.items():
            take(name.encode("utf-8", "surrogatepass") + b"\0")
            take(column)

    def mean(self, name: str) -> float | None:
        """The mean so far, exact enough to display; None if there are no values."""
        running = self._running(name)
        mean = running.total / running.count if running.count else math.nan
        return mean if math.isfinite(mean) else None

    def copied_names(self) -> frozenset[str]:
        """The fields whose every value is that of the row; never the reward."""
        return frozenset(
            name
            for name, count in self.copied.items()
            if name != REWARD and count >= self._running(name).count > 0
        )

    def mark_copied(self, names: Iterable[str]) -> None:
        """Note that every value of these fields is that of the row."""
        self.copied = Counter({name: self._running(name).count for name in names})

    def _running(self, name: str) -> "_Running":
        running = self._means.setdefault(name, _Running())
        running.take(self._columns.get(name, _NO_VALUES))
        return running

    def by_task(self) -> ByTask:
        return ByTask(self.tasks, self.rollouts)

    def statistics(self) -> dict[str, float]:
        """`mean/`, `max/`, `min/`, `median/` and `std/` of every field, over all rollouts."""
        return dict(self._statistics(with_errors=False))

    def metrics(self) -> dict[str, float]:
        """The statistics, the uncertainty of each mean, values that were not finite, and tool calls."""
        non_finite = {f"{NON_FINITE}/{name}": count for name, count in self.non_finite.items()}
        return dict(self._statistics(with_errors=True)) | non_finite | self.tool_use.metrics()

    def _statistics(self, *, with_errors: bool) -> Iterator[tuple[str, float]]:
        by_task = self.by_task() if with_errors and len(self) else None
        for name, column in self._columns.items():
            found = overall(column)
            if found is None:
                continue
            for label, value in zip(LABELS, found, strict=True):
                if math.isfinite(value):
                    yield f"{label}/{name}", value
                    if label == "mean" and by_task is not None:
                        estimate = _estimate(column, found, by_task)
                        for error, number in estimate.named(f"mean/{name}").items():
                            is_taken = error.removeprefix("mean/") in self._columns  # by a field's mean
                            if not is_taken:
                                yield error, number

    def estimate(self, name: str) -> Estimate | None:
        """The mean of a field with its uncertainty; None if no rollout has the field."""
        values = self.values(name)
        found = overall(values)
        if found is None or not math.isfinite(found.mean):
            return None
        return _estimate(values, found, self.by_task())

    def groups(self) -> Iterator[dict[str, Any]]:
        """The statistics of each task, with its index, in the order of the indices."""
        for table in self.group_tables():
            yield from table.groups()

    def group_tables(self) -> "Iterator[GroupTable]":
        """The statistics of each task, as tables of some tasks each."""
        if not len(self):
            return
        by_task = self.by_task()
        labels = [f"{label}/{name}" for name in self._columns for label in LABELS]
        for block in by_task.blocks():
            parts = [of_rows(by_task.rows(column, block)) for column in self._columns.values()]
            tasks = by_task.tasks(block).tolist()
            yield GroupTable(labels, tasks, np.hstack(parts) if parts else np.empty((len(tasks), 0)))


@dataclass(frozen=True)
class GroupTable:
    """The statistics of some tasks."""

    labels: list[str]
    tasks: list[int]
    values: Floats
    """One row per task, one column per label; not finite if there is no value."""

    @property
    def is_complete(self) -> bool:
        """Whether every task has every value."""
        return bool(np.isfinite(self.values).all())

    def groups(self) -> Iterator[dict[str, Any]]:
        labels, is_complete = [TASK_INDEX_KEY_NAME, *self.labels], self.is_complete
        for task, row in zip(self.tasks, self.values, strict=True):
            group = dict(zip(labels, [task, *row.tolist()], strict=True))
            yield (
                group
                if is_complete
                else {label: value for label, value in group.items() if math.isfinite(value)}
            )


def _estimate(column: "array[float]", found: Statistics, by_task: ByTask) -> Estimate:
    """The mean of a column; its standard error is clustered by task."""
    ordered = by_task.ordered(column)
    is_present = ~np.isnan(ordered)
    has_values = by_task.sums(is_present.astype(float)) > 0
    tasks, size = int(has_values.sum()), int(is_present.sum())
    if tasks < 2:
        return Estimate(found.mean, tasks)
    with np.errstate(all="ignore"):
        ordered -= found.mean
        ordered[~is_present] = 0.0
        deviations = by_task.sums(ordered) / size
        std_err = math.sqrt(float(np.dot(deviations, deviations)) * tasks / (tasks - 1))
    if not math.isfinite(std_err):
        return Estimate(found.mean, tasks)
    values = np.frombuffer(column)
    is_binary = {found.min, found.max} <= {0.0, 1.0} and bool(
        np.isin(values[~np.isnan(values)], (0, 1)).all()
    )
    shares, within = size if is_binary else None, Range.of_values(found.min, found.max)
    return around(found.mean, std_err, tasks, shares=shares, within=within)


_NO_VALUES = array("d")


@dataclass
class _Running:
    """The sum of the values of a column that have been seen so far."""

    seen: int = 0
    count: int = 0
    total: float = 0.0

    def take(self, column: "array[float]") -> None:
        """Add the new values at the end of the column."""
        new = [value for value in column[self.seen :] if value == value]
        self.seen = len(column)
        self.count += len(new)
        self.total += sum(new)
