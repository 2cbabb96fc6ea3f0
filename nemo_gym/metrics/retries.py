"""Whether rollouts that needed a retry score differently from first tries.

If they do, what fails is not like the rest: a mean over what succeeded in the end is not that of the tasks.
"""

import math
from array import array
from dataclasses import dataclass

from nemo_gym.metrics.columns import REWARD, Columns
from nemo_gym.metrics.student import two_sided_p

_FEWEST = 5
"""Rollouts on either side without which a difference between them says nothing."""
_SURE = 0.05


@dataclass(frozen=True)
class RetryGap:
    """Rollouts that needed a retry beside those that did not."""

    retried: int
    retried_mean: float
    first_mean: float
    p_value: float
    """That of no difference, clustered by task."""

    @property
    def is_sure(self) -> bool:
        return self.p_value < _SURE


def retry_gap(columns: Columns) -> RetryGap | None:
    """The mean rewards of both, and the chance of such a difference if there is none; None with too few.

    The error of the difference is clustered by task, as everywhere.
    """
    import numpy as np

    if len(columns.retried) < _FEWEST:
        return None
    values = np.frombuffer(columns.values(REWARD))
    has_reward, is_retried = ~np.isnan(values), np.zeros(len(values), bool)
    is_retried[np.frombuffer(columns.retried, np.int64)] = True
    retried, first = is_retried & has_reward, ~is_retried & has_reward
    counts = int(retried.sum()), int(first.sum())
    if min(counts) < _FEWEST:
        return None
    with np.errstate(all="ignore"):
        means = float(values[retried].mean()), float(values[first].mean())
        pulls = np.where(retried, (values - means[0]) / counts[0], 0.0)
        pulls -= np.where(first, (values - means[1]) / counts[1], 0.0)
    by_task = columns.by_task()
    pulls = by_task.sums(by_task.ordered(array("d", pulls.tobytes())))
    square, tasks, difference = float(np.dot(pulls, pulls)), len(pulls), means[0] - means[1]
    if tasks < 2 or not math.isfinite(square) or not math.isfinite(difference):
        return None
    std_err = math.sqrt(square * tasks / (tasks - 1))
    if std_err:
        return RetryGap(counts[0], *means, two_sided_p(difference / std_err, tasks - 1))
    return RetryGap(counts[0], *means, 0.0 if difference else 1.0)
