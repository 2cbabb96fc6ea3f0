"""Statistics of columns of numbers, over all rollouts and per task.

NaN in a column means that the value is missing. Sums over all rollouts are exact; sums within a task carry
their rounding error along. Everything else is computed from sorted values. So the order in which rollouts
arrive changes no digit.
"""

import math
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from nemo_gym.metrics.lazy_numpy import np

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Places: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_MOST_TASKS = 1 << 11
_CELLS = 1 << 14
"""The size of a block: the number of its tasks times the rollouts of the largest."""
_LONG_ROW = 128
"""Rows longer than this are summed one by one."""
_EXACT = 2.0**53
"""Sums of whole numbers below this are exact."""


class Statistics(NamedTuple):
    """The statistics of one field, in the order in which they are reported."""

    mean: float
    max: float
    min: float
    median: float
    std: float


def as_floats(column: "array[float]") -> Floats:
    return np.frombuffer(column, np.float64)


def present(column: "array[float]") -> "array[float]":
    """The column without missing values; the column itself if none is missing."""
    values = as_floats(column)
    is_missing = np.isnan(values)
    return array("d", values[~is_missing].tobytes()) if is_missing.any() else column


def overall(column: "array[float]") -> Statistics | None:
    """The statistics of all values; None if there are none. A statistic that overflows is infinite."""
    exact = present(column)
    if not exact:
        return None
    values, half = np.sort(as_floats(exact)), len(exact) // 2
    low, high = float(values[0]), float(values[-1])
    if low == high:
        return Statistics(low, low, low, low, 0.0)
    median = float(values[half]) if len(exact) % 2 else (float(values[half - 1]) + float(values[half])) / 2
    mean, unit = _mean(exact), high - low  # in this unit no square overflows or underflows
    if not math.isfinite(mean) or not math.isfinite(unit):
        return Statistics(mean, high, low, median, math.inf)
    values -= mean
    values /= unit
    lost = float(values.sum())  # the rounding error of the mean
    squares = float(np.dot(values, values)) - lost * lost / len(exact)
    return Statistics(mean, high, low, median, unit * math.sqrt(max(0.0, squares) / (len(exact) - 1)))


def _mean(values: "array[float]") -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.inf


class ByTask:
    """The rollouts sorted by task index, then by rollout index."""

    def __init__(self, tasks: "array[int]", rollouts: "array[int]") -> None:
        self._tasks = np.frombuffer(tasks, np.int64)
        self._order: Places = np.lexsort((np.frombuffer(rollouts, np.int64), self._tasks))
        ordered = self._tasks[self._order]
        is_first = np.empty(len(ordered), bool)
        is_first[:1] = True
        np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
        self._edges: Places = np.append(np.flatnonzero(is_first), len(ordered))
        """Where each task begins, and where the last one ends."""

    def __len__(self) -> int:
        return len(self._edges) - 1

    def tasks(self, block: slice = slice(None)) -> Places:
        """The task indices, sorted."""
        tasks: Places = self._tasks[self._order[self._edges[:-1][block]]]
        return tasks

    def ordered(self, column: "array[float]") -> Floats:
        values: Floats = as_floats(column)[self._order]
        return values

    def sums(self, ordered: Floats) -> Floats:
        """The sum of each task's values, none of which may be NaN."""
        totals: Floats = np.add.reduceat(ordered, self._edges[:-1])
        return totals

    def blocks(self) -> Iterator[slice]:
        """Ranges of tasks, each small enough for a block."""
        first = 0
        while first < len(self):
            sizes = np.diff(self._edges[first : first + _MOST_TASKS + 1])
            cells = np.maximum.accumulate(sizes) * np.arange(1, len(sizes) + 1)
            end = first + max(1, int(np.searchsorted(cells, _CELLS, "right")))
            yield slice(first, end)
            first = end

    def rows(self, column: "array[float]", block: slice) -> Floats:
        """The sorted values of some tasks, one row per task; shorter rows are filled up with NaN."""
        edges = self._edges[block.start : block.stop + 1]
        sizes = np.diff(edges)
        width = int(sizes.max())
        values = as_floats(column)[self._order[edges[0] : edges[-1]]]
        if len(values) == len(sizes) * width:
            rows = values.reshape(len(sizes), width)
        else:
            rows = np.full((len(sizes), width), np.nan)
            rows[np.arange(width) < sizes[:, None]] = values
        rows.sort(axis=1)
        return rows


def of_rows(rows: Floats) -> Floats:
    """The statistics of each sorted row; not finite if the row has no values or the statistic overflows."""
    if rows.shape[1] == 1:
        values = rows[:, 0]
        return np.column_stack([values, values, values, values, np.where(np.isnan(values), np.nan, 0.0)])
    with np.errstate(all="ignore"):
        return _of_wide_rows(rows)


def _of_wide_rows(rows: Floats) -> Floats:
    line, width = np.arange(len(rows)), rows.shape[1]
    is_missing = np.isnan(rows)
    some_missing = bool(is_missing[:, -1].any())
    counts = width - is_missing.sum(axis=1) if some_missing else np.full(len(rows), width)
    lows, highs = rows[:, 0], rows[line, counts - 1]
    medians = (rows[line, (counts - 1) // 2] + rows[line, counts // 2]) / 2
    is_same = lows == highs
    means = np.clip(
        _row_sums(np.where(is_missing, 0.0, rows) if some_missing else rows) / counts, lows, highs
    )
    units = np.where(is_same, 1.0, highs - lows)  # in these units no square overflows or underflows
    deviations = (rows - means[:, None]) / units[:, None]
    if some_missing:
        deviations[is_missing] = 0.0
    lost = deviations.sum(axis=1)  # the rounding error of the mean
    squares = np.einsum("ij,ij->i", deviations, deviations) - lost * lost / counts
    stds = units * np.sqrt(np.maximum(squares, 0.0) / np.maximum(counts - 1, 1))
    table = np.column_stack([means, highs, lows, medians, stds])
    table[is_same, 4] = 0.0
    table[is_same, 0] = table[is_same, 3] = lows[is_same]
    table[counts == 0] = np.nan
    return table


def _row_sums(rows: Floats) -> Floats:
    """The sum of each row, precise even if values cancel each other."""
    if rows.shape[1] > _LONG_ROW:
        return np.array([_sum(row) for row in rows.tolist()])
    if (rows == np.rint(rows)).all() and np.abs(rows).max(initial=0.0) < _EXACT / rows.shape[1]:
        return np.asarray(rows.sum(axis=1))
    totals, lost = np.zeros(len(rows)), np.zeros(len(rows))
    for column in np.ascontiguousarray(rows.T):  # keeps the rounding error of each sum (Knuth)
        sums = totals + column
        part = sums - totals
        lost += (totals - (sums - part)) + (column - part)
        totals = sums
    return totals + lost


def _sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf
