"""The summary of an agent's rollouts, as data: the mean reward and everything that makes it uncertain."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from nemo_gym.metrics.columns import REWARD, Columns
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.pass_at_k import pass_at_k
from nemo_gym.metrics.retry_effect import RetryGap, retry_gap
from nemo_gym.metrics.tool_use import ToolUse
from nemo_gym.metrics.uncertainty import Estimate, estimate_task_mean

_MOST_BINS = 10


@dataclass(frozen=True)
class Bin:
    """The number of rewards in a range; only the last bin includes its upper end."""

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
    """The largest number of rollouts of a task."""
    reward: Estimate | None
    """None if no rollout has a reward."""
    rewarded: int = 0
    """Rollouts that have a reward."""
    planned: int | None = None
    """The number of planned rollouts; None if unknown."""
    if_missing: tuple[float, float] | None = None
    """The mean reward if all missing rollouts fail, and if all pass."""
    retries: RetryGap | None = None
    """None if too few rollouts needed a retry."""
    histogram: list[Bin] = field(default_factory=list)
    pass_at: dict[int, Estimate] = field(default_factory=dict)
    """pass@k by k, if every reward is 0 or 1 and tasks have several rollouts. k is 1, 2, 4, … and the largest
    number of rollouts, as far as half of the tasks have k rollouts."""
    non_finite: dict[str, int] = field(default_factory=dict)
    """How many values of a field were NaN or infinite."""
    tool_use: ToolUse = field(default_factory=ToolUse)

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
            "non_finite": self.non_finite,
            "tool_use": self.tool_use.metrics(),
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
    """The summary of one agent's rollouts; `planned` is how many were planned, if known."""
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
        dict(columns.non_finite),
        columns.tool_use,
    )


def _bounds(reward: Estimate, values: Any, missing: int) -> tuple[float, float] | None:
    """The mean if all missing rollouts get 0 (or the lowest reward, if lower), and 1 (or the highest)."""
    share = missing / (len(values) + missing)
    low, high = min(0.0, float(values[0])), max(1.0, float(values[-1]))
    bounds = tuple(reward.mean * (1 - share) + end * share for end in (low, high))
    return (bounds[0], bounds[1]) if all(map(math.isfinite, bounds)) else None


def _histogram(values: Any) -> list[Bin]:
    """One bin per value if there are few different values, otherwise bins of equal width."""
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
    """pass@k of rewards that are all 0 or 1; tasks with fewer than k rollouts are left out."""
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
        if (sizes >= k).sum() * 2 < len(sizes):  # too few tasks to represent the others
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
