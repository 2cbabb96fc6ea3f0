"""The summary of an agent's rollouts as text."""

import math

from nemo_gym.metrics.columns import REWARD
from nemo_gym.metrics.summary import Summary
from nemo_gym.metrics.uncertainty import Estimate
from nemo_gym.terminal import counted, one_line

_MOST_DECIMALS = 6
_LARGE = 1e9


def headline(summary: Summary) -> str:
    """One line: the mean reward, its uncertainty, and how much is missing."""
    reward = summary.reward
    if reward is None:
        parts = [f"no rewards, {_size(summary)}" if summary.rollouts else "no rollouts"]
    else:
        parts = [f"{REWARD} {with_interval(reward, _size(summary))}"]
    if summary.planned is None and summary.rollouts:
        parts.append("number of planned rollouts unknown")
    if summary.completion_pct is not None:
        parts.append(f"{_whole_percent(summary.completion_pct)} % complete")
    if summary.if_missing is not None:
        low, high = summary.if_missing
        parts.append(f"{between(low, high)} if all missing fail/pass")
    return ", ".join(parts)


def warnings(summary: Summary) -> list[str]:
    """Reasons to doubt the figures."""
    texts = []
    gap = summary.retries
    if gap is not None and gap.is_significant:
        texts.append(
            f"warning: the {gap.retried} rollouts that needed a retry score {gap.retried_mean:.2f} on "
            f"average, the others {gap.first_mean:.2f} (p = {gap.p_value:.2g}): rollouts that fail differ "
            "from the rest, so failures bias the mean"
        )
    without = summary.rollouts - summary.rewarded
    if without and summary.rewarded:
        has = "has" if without == 1 else "have"
        texts.append(f"warning: {counted(without, 'rollout')} of {summary.rollouts} {has} no reward")
    if summary.non_finite:
        counts = ", ".join(f"{one_line(name)} {count}" for name, count in sorted(summary.non_finite.items()))
        texts.append(f"warning: values that are NaN or infinite are left out: {counts}")
    return texts


def with_interval(estimate: Estimate, size: str) -> str:
    """`0.62 ± 0.03 (95 % CI, <size>)`; both ends of the interval if the mean is not in the middle."""
    mean, low, high = estimate.mean, estimate.low, estimate.high
    if low is None or high is None:
        why = "; no interval for a single task" if estimate.tasks == 1 else ""
        return f"{_figure(mean, 2)} ({size}{why})"
    if math.isclose(high - mean, mean - low, rel_tol=1e-6, abs_tol=1e-12):
        digits = decimals(high - mean)
        return f"{_figure(mean, digits)} ± {_figure(high - mean, digits)} (95 % CI, {size})"
    return f"{_figure(mean, decimals(high - low))} (95 % CI {between(low, high)}, {size})"


def between(low: float, high: float) -> str:
    digits = decimals(high - low)
    mark = " to " if low < 0 else "–"
    return f"{_figure(low, digits)}{mark}{_figure(high, digits)}"


def decimals(size: float) -> int:
    """How many decimals to show of figures that differ by `size`: two, or enough for two digits of `size`."""
    if not 0 < size < 0.02:
        return 2
    return min(_MOST_DECIMALS, max(2, 1 - math.floor(math.log10(size))))


def _figure(value: float, digits: int) -> str:
    """The value with this many decimals, or in scientific notation if it is very large or very small."""
    is_plain = value == 0 or 10.0**-_MOST_DECIMALS <= abs(value) < _LARGE
    return f"{value:.{digits}f}" if is_plain else f"{value:.3g}"


def _size(summary: Summary) -> str:
    if summary.reward is not None and summary.rewarded < summary.rollouts:
        tasks = counted(summary.reward.tasks, "task")
        return f"{tasks}, {counted(summary.rewarded, 'rollout')} with a reward"
    tasks = counted(summary.tasks, "task")
    expected = summary.rollouts + summary.missing
    if expected == summary.tasks * summary.most_rollouts:
        return f"{tasks} × {summary.most_rollouts}"
    return f"{tasks}, {counted(summary.rollouts, 'rollout')}"


def _whole_percent(share: float) -> str:
    """A whole percentage; 100 only if nothing is missing, 0 only if everything is."""
    return f"{share:.0f}" if share in (0, 100) else f"{min(max(share, 1), 99):.0f}"
