"""Measured times by label. A label may be measured several times."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def _std(values: Sequence[float]) -> float:
    return statistics.pstdev(values)


_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "std": _std,
    "sum": sum,
    "count": len,
}


class Timer:
    """`start` and `stop` a label, or `with timer.time(label)`; then `reduce`."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}
        self._elapsed: dict[str, list[float]] = {}

    def start(self, label: str) -> None:
        if label in self._started:
            raise ValueError(f"timer {label!r} is already running")
        self._started[label] = time.perf_counter()

    def stop(self, label: str) -> float:
        """Returns the seconds since the start."""
        if label not in self._started:
            raise ValueError(f"timer {label!r} is not running")
        elapsed = time.perf_counter() - self._started.pop(label)
        self._elapsed.setdefault(label, []).append(elapsed)
        return elapsed

    @contextmanager
    def time(self, label: str) -> Iterator[None]:
        self.start(label)
        try:
            yield
        finally:
            self.stop(label)

    def reduce(self, label: str, op: str = "mean") -> float:
        """Reduce the measured times of a label to one number."""
        if label not in self._elapsed:
            raise KeyError(f"timer {label!r} has no measured times")
        if op not in _REDUCTIONS:
            raise ValueError(f"unknown reduction {op!r}; known: {', '.join(_REDUCTIONS)}")
        return _REDUCTIONS[op](self._elapsed[label])

    def get_timing_metrics(self, op: str = "mean") -> dict[str, float]:
        """The reduced time of every label."""
        return {label: self.reduce(label, op) for label in self._elapsed}
