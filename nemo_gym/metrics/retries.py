"""Whether rollouts that needed a retry score differently from first tries.

If they do, what fails is not like the rest: a mean over what succeeded in the end is not that of the tasks.
"""

import math
from array import array
from dataclasses import dataclass

from nemo_gym.metrics.columns import REWARD, Columns
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.student import two_sided_p

_FEWEST_TASKS = 5
"""Tasks on either side without which a difference between them says nothing."""
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

    The error of the difference is clustered by task, as everywhere; its degrees of freedom are those of the
    side with fewer tasks.
    """
    if not columns.retried:
        return None
    values = np.frombuffer(columns.values(REWARD))
    has_reward, is_retried = ~np.isnan(values), np.zeros(len(values), bool)
    is_retried[np.frombuffer(columns.retried, np.int64)] = True
    by_task = columns.by_task()
    sides, means, tasks, pulls = (is_retried & has_reward, ~is_retried & has_reward), [], [], []
    for side in sides:
        per_task = by_task.sums(by_task.ordered(array("d", side.astype(float).tobytes())))
        tasks.append(int((per_task > 0).sum()))
        if tasks[-1] < _FEWEST_TASKS:
            return None
        with np.errstate(all="ignore"):
            means.append(float(values[side].mean()))
            pulls.append(np.where(side, (values - means[-1]) / int(side.sum()), 0.0))
    pull = by_task.sums(by_task.ordered(array("d", (pulls[0] - pulls[1]).tobytes())))
    fewer, square, difference = min(tasks), float(np.dot(pull, pull)), means[0] - means[1]
    if not math.isfinite(square) or not math.isfinite(difference):
        return None
    if square:
        p_value = two_sided_p(difference / math.sqrt(square * fewer / (fewer - 1)), fewer - 1)
    else:  # each side is always the same: a sign test of the fewer tasks
        p_value = 2.0 ** (1 - fewer) if difference else 1.0
    return RetryGap(int(sides[0].sum()), means[0], means[1], p_value)
