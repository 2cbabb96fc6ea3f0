"""The uncertainty of a mean: its standard error and 95 % interval.

Rollouts of one task are not independent, so the standard error is clustered by task. The 95 % interval is
Student's t around the mean, with one degree of freedom less than there are tasks.

For values between 0 and 1 that interval is wrong near the ends: it goes beyond 0 or 1, and if all values are
0, or all are 1, its width is 0, as if the mean were certain. With fewer than ten successes or failures (in
independent rollouts), the exact Clopper-Pearson interval is used instead. Its number of trials is the number
of independent rollouts with the same standard error (Korn and Graubard), or the number of tasks if all values
are equal.

No interval leaves the range of its quantity (`Range`). It is cut off there: the values beyond are impossible,
so this never removes the true mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nemo_gym.metrics.beta import exact_interval
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.student import critical_t, two_sided_p

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = Sequence[float] | NDArray[np.float64]

CONFIDENCE = 0.95
_NORMAL = 1.959963984540054
"""The critical value of Student's t for infinitely many tasks."""
_FEW = 10
_NEGLIGIBLE = 1e-9
"""An end of an interval this close to 0 or 1 is reported as 0 or 1."""
ERRORS = ("std_err", "ci95_low", "ci95_high")
"""The uncertainties of a metric, reported as `<metric>/<error>`."""


class Range(NamedTuple):
    """What the values of a quantity, and so its mean, can be."""

    low: float
    high: float

    @classmethod
    def of_values(cls, least: float, largest: float) -> "Range":
        """The range of a quantity that has these extreme values.

        0 to 1 if all values are within it, as rewards and shares are; at least 0 if no value is negative, as
        with counts, tokens and durations; otherwise unlimited.
        """
        if least >= 0:
            return cls(0.0, 1.0 if largest <= 1 else math.inf)
        return _UNLIMITED


_UNLIMITED = Range(-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks."""

    mean: float
    tasks: int
    std_err: float | None = None
    """Clustered by task; None with fewer than two tasks."""
    low: float | None = None
    """The lower end of the 95 % interval."""
    high: float | None = None

    def named(self, metric: str) -> dict[str, float]:
        """The known uncertainties as metrics: `<metric>/std_err` and so on."""
        parts = zip(ERRORS, (self.std_err, self.low, self.high), strict=True)
        return {f"{metric}/{name}": value for name, value in parts if value is not None}

    def scaled(self, factor: float) -> "Estimate":
        """The estimate in another unit."""
        parts = (self.std_err, self.low, self.high)
        return Estimate(
            self.mean * factor, self.tasks, *(None if part is None else part * factor for part in parts)
        )

    @property
    def reach(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def estimate_mean(totals: "Numbers", counts: "Numbers", *, are_shares: bool = False) -> Estimate:
    """The mean of all values, from the sum and the number (not 0) of each task's values.

    `are_shares` says that the values lie between 0 and 1.
    """
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
    std_err = math.sqrt(square * tasks / (tasks - 1))
    return around(mean, std_err, tasks, shares=size if are_shares else None)


def estimate_task_mean(
    values: "Numbers", *, are_shares: bool = False, within: Range = _UNLIMITED
) -> Estimate:
    """The mean of one value per task; `within` is the range of the quantity."""
    numbers = np.asarray(values, float)
    if len(numbers) > 1 and numbers.min() == numbers.max():  # an error of exactly 0, without rounding
        return around(float(numbers[0]), 0.0, len(numbers), shares=len(numbers) if are_shares else None)
    mean = estimate_mean(numbers, np.ones(len(numbers)))
    if mean.std_err is None:
        return mean
    shares = math.inf if are_shares else None
    return around(mean.mean, mean.std_err, mean.tasks, shares=shares, within=within)


def around(
    mean: float,
    std_err: float,
    tasks: int,
    *,
    shares: float | None = None,
    within: Range = _UNLIMITED,
) -> Estimate:
    """The estimate with this standard error, over at least two tasks, `within` the range of the quantity. For
    values between 0 and 1, `shares` is the number of values, infinity if unknown."""
    reach = critical_t(tasks - 1, CONFIDENCE)
    low, high = max(mean - reach * std_err, within.low), min(mean + reach * std_err, within.high)
    if shares is not None:
        size = _independent(mean, std_err, tasks, shares)
        if not std_err or min(mean, 1 - mean) * size < _FEW:
            # With few tasks the standard error itself is uncertain, as in Student's t.
            factor = (_NORMAL / reach) ** 2 if std_err else 1.0
            low, high = exact_interval(min(max(mean, 0.0), 1.0), size * factor, CONFIDENCE)
        low, high = low if low > _NEGLIGIBLE else 0.0, high if 1 - high > _NEGLIGIBLE else 1.0
    if not (math.isfinite(low) and math.isfinite(high)):
        return Estimate(mean, tasks, std_err if math.isfinite(std_err) else None)
    return Estimate(mean, tasks, std_err, min(low, mean), max(high, mean))


def _independent(mean: float, std_err: float, tasks: int, values: float) -> float:
    """How many independent values would have this standard error; if it is 0, at most how many there are."""
    if mean <= 0.0 or mean >= 1.0:
        return tasks
    return min(values, mean * (1 - mean) / std_err**2) if std_err else values


class Difference(NamedTuple):
    """The difference of two means."""

    value: float
    std_err: float | None
    low: float | None
    high: float | None
    p_value: float | None
    """Two-sided: the probability of a difference at least this large if the true difference is 0."""


def paired_difference(differences: "Numbers") -> Difference:
    """The mean of one difference per task: a paired t test over the tasks.

    If all tasks differ by the same amount, the standard error is 0: there is no interval, and the p-value is
    that of a sign test.
    """
    estimate = estimate_task_mean(differences)
    mean, std_err, tasks = estimate.mean, estimate.std_err, estimate.tasks
    if std_err is None:
        return Difference(mean, None, None, None, None)
    if std_err == 0.0:
        return Difference(mean, 0.0, None, None, 2.0 ** (1 - tasks) if mean else 1.0)
    return Difference(mean, std_err, estimate.low, estimate.high, two_sided_p(mean / std_err, tasks - 1))
