"""What one looks at first: the mean reward with all that makes it less sure, as data."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from nemo_gym.metrics.columns import REWARD, Columns
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.pass_at_k import pass_at_k
from nemo_gym.metrics.retries import RetryGap, retry_gap
from nemo_gym.metrics.uncertainty import Estimate, estimate_task_mean

_MOST_BINS = 10


@dataclass(frozen=True)
class Bin:
    """How many rewards are in a range; the upper end belongs to the last one only."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Summary:
    """The rewards of one agent's rollouts."""

    agent: str
    rollouts: int
    tasks: int
    most_rollouts: int
    """That a task has."""
    reward: Estimate | None
    """None where no rollout has one."""
    rewarded: int = 0
    """Rollouts that have a reward."""
    planned: int | None = None
    """Rollouts that there should be; None where nobody knows."""
    if_missing: tuple[float, float] | None = None
    """The mean reward if all that are missing had failed, and if all had succeeded."""
    retries: RetryGap | None = None
    """None where too few rollouts needed a retry."""
    histogram: list[Bin] = field(default_factory=list)
    pass_at: dict[int, Estimate] = field(default_factory=dict)
    """By k, where every reward is 0 or 1 and tasks have several rollouts: of 1, 2, 4, … and the largest those
    that half of the tasks have."""
    odd: dict[str, int] = field(default_factory=dict)
    """How many values of a field were NaN or infinite."""

    @property
    def missing(self) -> int:
        return 0 if self.planned is None else max(0, self.planned - self.rollouts)

    @property
    def completion_pct(self) -> float | None:
        if not self.planned:
            return None
        return 100 * (1 - self.missing / self.planned)

    def as_data(self) -> dict[str, Any]:
        reward, retries = self.reward, self.retries
        return {
            "agent": self.agent,
            "rollouts": self.rollouts,
            "tasks": self.tasks,
            "reward": None if reward is None else {**_estimate_data(reward), "rollouts": self.rewarded},
            "coverage": self.coverage(),
            "retries": None
            if retries is None
            else {
                "retried": retries.retried,
                "mean_reward_retried": retries.retried_mean,
                "mean_reward_first_tries": retries.first_mean,
                "p_value": retries.p_value,
            },
            "histogram": [asdict(one) for one in self.histogram],
            "pass_at_k": {str(k): _estimate_data(estimate) for k, estimate in self.pass_at.items()},
            "non_finite": self.odd,
        }

    def coverage(self) -> dict[str, Any]:
        low, high = self.if_missing or (None, None)
        return {
            "planned": self.planned,
            "completed": self.rollouts,
            "missing": None if self.planned is None else self.missing,
            "completion_pct": self.completion_pct,
            "mean_reward_if_missing_fail": low,
            "mean_reward_if_missing_pass": high,
        }


def summarize(agent: str, columns: Columns, planned: int | None = None) -> Summary:
    """What is to be said of one agent's rollouts, of which so many were planned."""
    if not len(columns):
        return Summary(agent, 0, 0, 0, None, planned=planned)
    reward, by_task = columns.estimate(REWARD), columns.by_task()
    sizes = by_task.sums(np.ones(len(columns)))
    values = np.frombuffer(columns.values(REWARD))
    values = np.sort(values[~np.isnan(values)])
    missing = 0 if planned is None else max(0, planned - len(columns))
    return Summary(
        agent,
        len(columns),
        len(by_task),
        int(sizes.max()),
        reward,
        len(values),
        planned,
        _bounds(reward, values, missing) if reward is not None and missing else None,
        retry_gap(columns),
        _histogram(values),
        _pass_at(columns),
        dict(columns.odd),
    )


def _bounds(reward: Estimate, values: Any, missing: int) -> tuple[float, float] | None:
    """The mean if all that are missing had failed, or succeeded: 0 and 1, or what lies beyond those."""
    share = missing / (len(values) + missing)
    low, high = min(0.0, float(values[0])), max(1.0, float(values[-1]))
    bounds = tuple(reward.mean * (1 - share) + end * share for end in (low, high))
    return (bounds[0], bounds[1]) if all(map(math.isfinite, bounds)) else None


def _histogram(values: Any) -> list[Bin]:
    """The values themselves where there are few different ones, else ranges of one width."""
    if not len(values):
        return []
    different, counts = np.unique(values, return_counts=True)
    if len(different) <= _MOST_BINS:
        return [
            Bin(value, value, count) for value, count in zip(different.tolist(), counts.tolist(), strict=True)
        ]
    if not math.isfinite(float(values[-1]) - float(values[0])):
        return []
    counts, edges = np.histogram(values, bins=_MOST_BINS)
    ends = edges.tolist()
    return [Bin(*one) for one in zip(ends[:-1], ends[1:], counts.tolist(), strict=True)]


def _pass_at(columns: Columns) -> dict[int, Estimate]:
    """pass@k of rewards that are all 0 or 1; tasks with fewer than k are left out of it."""
    by_task = columns.by_task()
    ordered = by_task.ordered(columns.values(REWARD))
    is_present = ~np.isnan(ordered)
    if not ((ordered[is_present] == 0) | (ordered[is_present] == 1)).all():
        return {}
    sizes = by_task.sums(is_present.astype(float)).astype(int)
    solved = by_task.sums(np.where(is_present, ordered, 0.0)).astype(int)
    most = int(sizes.max(initial=0))
    if most < 2:
        return {}
    kinds, counts = np.unique(np.column_stack([sizes, solved]), axis=0, return_counts=True)
    found = {}
    for k in sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most}):
        if (sizes >= k).sum() * 2 < len(sizes):  # what few tasks say is not about the others
            continue
        chances = [
            (pass_at_k([1.0] * right + [0.0] * (size - right), k), count)
            for (size, right), count in zip(kinds.tolist(), counts.tolist(), strict=True)
            if size >= k
        ]
        values = np.repeat([chance for chance, _ in chances], [count for _, count in chances])
        found[k] = estimate_task_mean(values, are_shares=True)
    return found


def _estimate_data(estimate: Estimate) -> dict[str, float | None]:
    return {
        "mean": estimate.mean,
        "tasks": estimate.tasks,
        "std_err": estimate.std_err,
        "ci95_low": estimate.low,
        "ci95_high": estimate.high,
    }
