"""The numbers of many rollouts in little memory: 8 bytes a field a rollout.

Invariant: every column is as long as there are rollouts; NaN stands where a rollout has no such field. A
value that is missing, NaN or infinite is left out; no such value reaches a result, nor does a statistic that
no float can hold.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.statistics import ByTask, Floats, Statistics, of_rows, overall
from nemo_gym.metrics.uncertainty import Estimate, around
from nemo_gym.types import TASK_INDEX_KEY_NAME

REWARD = "reward"
LABELS = ("mean", "max", "min", "median", "std")
"""What is told of every field, as `<label>/<field>`."""
NON_FINITE = "non_finite"
"""The label of how many values were NaN or infinite, where some were."""


class Columns:
    """The numbers of one agent's rollouts."""

    def __init__(self) -> None:
        self.tasks = array("q")
        """The task index of each rollout, in the order they were added."""
        self.rollouts = array("q")
        """The rollout index of each."""
        self.retried = array("q")
        """The places of those that took more than one try."""
        self.odd: Counter[str] = Counter()
        """How many values of a field were numbers, but not finite."""
        self._columns: dict[str, array[float]] = {}
        self._means: dict[str, _Running] = {}

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def names(self) -> list[str]:
        """The fields, in order of first sight."""
        return list(self._columns)

    def values(self, name: str) -> "array[float]":
        """One field of every rollout, NaN where it is missing."""
        column = self._columns.get(name)
        return column if column is not None else array("d", [math.nan]) * len(self)

    def add(
        self,
        task: int,
        rollout: int,
        numbers: Mapping[str, float],
        odd: Sequence[str] = (),
        is_retried: bool = False,
    ) -> None:
        """Keep the (finite) numbers of one rollout; `odd` are the names of those that are not finite."""
        columns = self._columns
        if is_retried:
            self.retried.append(len(self.tasks))
        if odd:
            self.odd.update(odd)
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
        """Whether a rollout has had such a field."""
        return name in self._columns

    def add_many(
        self, tasks: Sequence[int], rollouts: Sequence[int], numbers: "Mapping[str, array[float]]"
    ) -> None:
        """Keep the numbers of several first tries, all of which have the same fields, none of them new."""
        self.tasks.extend(tasks)
        self.rollouts.extend(rollouts)
        for name, column in self._columns.items():
            column.extend(numbers[name] if name in numbers else array("d", [math.nan]) * len(tasks))

    def extend(self, other: "Columns") -> None:
        """Add the rollouts of another part."""
        before = len(self.tasks)
        self.tasks.extend(other.tasks)
        self.rollouts.extend(other.rollouts)
        self.retried.extend(array("q", [place + before for place in other.retried]))
        self.odd.update(other.odd)
        for name, theirs in other._columns.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("d", [math.nan]) * before
            column.extend(theirs)
        for name, column in self._columns.items():
            if name not in other._columns:
                column.extend(array("d", [math.nan]) * len(other))

    def feed(self, take: Callable[["bytes | array[Any]"], object]) -> None:
        """Give all that is here, piece by piece, to something like a digest."""
        for numbers in (self.tasks, self.rollouts, self.retried):
            take(numbers)
        take(repr(sorted(self.odd.items())).encode("utf-8", "surrogatepass"))
        for name, column in self._columns.items():
            take(name.encode("utf-8", "surrogatepass") + b"\0")
            take(column)

    def mean(self, name: str) -> float | None:
        """The mean so far, near enough to show; None where there is none."""
        running = self._means.setdefault(name, _Running())
        running.take(self._columns.get(name, _NO_VALUES))
        mean = running.total / running.count if running.count else math.nan
        return mean if math.isfinite(mean) else None

    def by_task(self) -> ByTask:
        return ByTask(self.tasks, self.rollouts)

    def statistics(self) -> dict[str, float]:
        """`mean/`, `max/`, `min/`, `median/` and `std/` of every field, over all rollouts."""
        return dict(self._statistics(with_errors=False))

    def metrics(self) -> dict[str, float]:
        """The same with the uncertainty of each mean beside it, and how many values were not finite."""
        odd = {f"{NON_FINITE}/{name}": count for name, count in self.odd.items()}
        return dict(self._statistics(with_errors=True)) | odd

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
                            if (
                                error.removeprefix("mean/") not in self._columns
                            ):  # a field has that name itself
                                yield error, number

    def estimate(self, name: str) -> Estimate | None:
        """The mean of a field with its uncertainty; None where no rollout has it."""
        values = self.values(name)
        found = overall(values)
        if found is None or not math.isfinite(found.mean):
            return None
        return _estimate(values, found, self.by_task())

    def groups(self) -> Iterator[dict[str, Any]]:
        """The same for each task, with its index, in the order of the indices."""
        for table in self.group_tables():
            yield from table.groups()

    def group_tables(self) -> "Iterator[GroupTable]":
        """The groups, some at a time, as tables."""
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
    """A row a task, a column a label; not finite where there is no value."""

    @property
    def is_whole(self) -> bool:
        """Whether every task has every value."""
        return bool(np.isfinite(self.values).all())

    def groups(self) -> Iterator[dict[str, Any]]:
        labels, is_whole = [TASK_INDEX_KEY_NAME, *self.labels], self.is_whole
        for task, row in zip(self.tasks, self.values, strict=True):
            group = dict(zip(labels, [task, *row.tolist()], strict=True))
            yield (
                group
                if is_whole
                else {label: value for label, value in group.items() if math.isfinite(value)}
            )


def _estimate(column: "array[float]", found: Statistics, by_task: ByTask) -> Estimate:
    """The mean of a column, clustered by task."""
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
    return around(found.mean, std_err, tasks, shares=size if is_binary else None)


_NO_VALUES = array("d")


@dataclass
class _Running:
    """The sum of a column as far as it has been looked at."""

    seen: int = 0
    count: int = 0
    total: float = 0.0

    def take(self, column: "array[float]") -> None:
        """Add what is new."""
        new = [value for value in column[self.seen :] if value == value]
        self.seen = len(column)
        self.count += len(new)
        self.total += sum(new)
