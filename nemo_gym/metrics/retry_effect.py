"""Whether rollouts that needed a retry have different rewards from those that succeeded at once.

If they do, rollouts that fail differ from the rest, and the mean over the successful ones is biased.
"""

import math
from array import array
from dataclasses import dataclass

from nemo_gym.metrics.columns import REWARD, Columns
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.student import two_sided_p

_FEWEST_TASKS = 5
"""The number of tasks that each side needs for a meaningful difference."""
_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class RetryGap:
    """Mean rewards of rollouts that needed a retry and of those that did not."""

    retried: int
    retried_mean: float
    first_mean: float
    p_value: float
    """Of the hypothesis that both means are equal, clustered by task."""

    @property
    def is_significant(self) -> bool:
        return self.p_value < _SIGNIFICANT


def retry_gap(columns: Columns) -> RetryGap | None:
    """The mean rewards of both sides and the p-value of their difference; None if there are too few tasks.

    The standard error of the difference is clustered by task. Its degrees of freedom are those of the side
    with fewer tasks.
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
    else:  # all rewards of a side are equal: a sign test over the tasks of the side with fewer
        p_value = 2.0 ** (1 - fewer) if difference else 1.0
    return RetryGap(int(sides[0].sum()), means[0], means[1], p_value)
