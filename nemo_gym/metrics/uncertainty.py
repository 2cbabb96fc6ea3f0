"""How sure a mean is.

Rollouts of one task are not independent, so tasks are what is counted: the standard error is clustered by
task. The 95 % interval is Student's t around the mean, with one degree of freedom less than there are tasks.
Where the values cannot leave a span, such as 0 to 1, it is cut there; where all of them stand at one end of
that span, which an error of 0 would call certain, it reaches as far as the exact (Clopper-Pearson) interval
of that many tasks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nemo_gym.metrics.student import critical_t, two_sided_p

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = Sequence[float] | NDArray[np.float64]

CONFIDENCE = 0.95
ERRORS = ("std_err", "ci95_low", "ci95_high")
"""What stands beside a metric, as `<metric>/<error>`."""


class Span(NamedTuple):
    """What values cannot leave."""

    low: float
    high: float


UNIT = Span(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks."""

    mean: float
    tasks: int
    std_err: float | None = None
    """Clustered by task; None where one task, or none, says nothing about others."""
    low: float | None = None
    """Of the 95 % interval."""
    high: float | None = None

    def named(self, metric: str) -> dict[str, float]:
        """What stands beside a metric of this name; nothing where nothing is known."""
        parts = zip(ERRORS, (self.std_err, self.low, self.high), strict=True)
        return {f"{metric}/{name}": value for name, value in parts if value is not None}

    def scaled(self, factor: float) -> "Estimate":
        """The same in another unit."""
        parts = (self.std_err, self.low, self.high)
        return Estimate(
            self.mean * factor, self.tasks, *(None if part is None else part * factor for part in parts)
        )

    @property
    def reach(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def estimate_mean(totals: "Numbers", counts: "Numbers", span: Span | None = None) -> Estimate:
    """The mean of all values, from the total of each task's and their number, which is nowhere 0."""
    import numpy as np

    sums, sizes = np.asarray(totals, float), np.asarray(counts, float)
    tasks, size = len(sums), float(sizes.sum())
    if not tasks:
        return Estimate(math.nan, 0)
    with np.errstate(all="ignore"):
        mean = float(sums.sum()) / size
        deviations = (sums - sizes * mean) / size
        square = float(np.dot(deviations, deviations))
    if tasks < 2 or not math.isfinite(square):
        return Estimate(mean, tasks)
    return around(mean, math.sqrt(square * tasks / (tasks - 1)), tasks, span)


def estimate_task_mean(values: "Numbers", span: Span | None = None) -> Estimate:
    """The mean of one value a task."""
    import numpy as np

    numbers = np.asarray(values, float)
    if len(numbers) > 1 and numbers.min() == numbers.max():  # no error, not that of rounding either
        return around(float(numbers[0]), 0.0, len(numbers), span)
    return estimate_mean(numbers, np.ones(len(numbers)), span)


def around(mean: float, std_err: float, tasks: int, span: Span | None = None) -> Estimate:
    """The estimate with this error, over two tasks or more."""
    reach = critical_t(tasks - 1, CONFIDENCE) * std_err
    low, high = mean - reach, mean + reach
    if span is not None:
        if mean >= span.high or mean <= span.low:  # no value is anywhere else
            # Clopper-Pearson: so many tasks of one kind come with this chance even at that rate of the other.
            certain = span.low + (span.high - span.low) * ((1 - CONFIDENCE) / 2) ** (1 / tasks)
            rest = span.high - certain
            low, high = (certain, span.high) if mean >= span.high else (span.low, span.low + rest)
        low, high = max(low, span.low), min(high, span.high)
    if not (math.isfinite(low) and math.isfinite(high)):
        return Estimate(mean, tasks, std_err if math.isfinite(std_err) else None)
    return Estimate(mean, tasks, std_err, low, high)


class Difference(NamedTuple):
    """How far two means are apart."""

    value: float
    std_err: float | None
    low: float | None
    high: float | None
    p_value: float | None
    """Two-sided: the chance of such a difference, or a larger one, where there is none."""


def paired_difference(differences: "Numbers") -> Difference:
    """The mean of one difference a task: a paired t test over the tasks.

    Where all tasks differ by the same there is no error to test with, and none to draw an interval from: the
    p-value is then the sign test's.
    """
    estimate = estimate_task_mean(differences)
    mean, std_err, tasks = estimate.mean, estimate.std_err, estimate.tasks
    if std_err is None:
        return Difference(mean, None, None, None, None)
    if std_err == 0.0:
        return Difference(mean, 0.0, None, None, 2.0 ** (1 - tasks) if mean else 1.0)
    return Difference(mean, std_err, estimate.low, estimate.high, two_sided_p(mean / std_err, tasks - 1))
