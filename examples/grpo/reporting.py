"""Results of a run: one line per step, numbers as JSON, the learning curve as an image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.metrics.uncertainty import Difference, Estimate, estimate_mean, paired_difference

if TYPE_CHECKING:
    from examples.grpo.learner import UpdateReport

_SMOOTHING = 0.6
"""Weight of the earlier steps in the smoothed curve."""


@dataclass(frozen=True)
class Evaluation:
    """The results of the held-out tasks for one version of the weights."""

    rewards: list[list[float]]
    """For each task, the rewards of its rollouts."""
    weight_versions: list[int]

    @property
    def estimate(self) -> Estimate:
        totals, counts = [sum(task) for task in self.rewards], [len(task) for task in self.rewards]
        return estimate_mean(totals, counts, are_shares=True)

    @property
    def task_means(self) -> list[float]:
        return [sum(task) / len(task) for task in self.rewards]


@dataclass(frozen=True)
class StepReport:
    step: int
    reward: float
    """Mean reward of the step's rollouts."""
    rollouts: int
    weight_versions: list[int]
    """The versions of the weights that sampled the step's groups."""
    update: UpdateReport
    seconds: dict[str, float]


@dataclass
class SamplingTime:
    """How the time of sampling was spent, over all steps."""

    wall_s: float = 0.0
    generating_s: float | None = None
    """Time in which the model computed; None if it runs in another process."""
    loop_cpu_s: float = 0.0
    """CPU time of the event loop: the manager, and servers hosted in this process."""

    @property
    def overhead(self) -> float | None:
        """The share of time in which nothing was generated: the manager and the environment."""
        return None if self.generating_s is None else 1.0 - self.generating_s / self.wall_s

    def as_json(self) -> dict[str, float | None]:
        return {**asdict(self), "overhead": self.overhead}


@dataclass
class RunReport:
    """The results of one seed, filled while the run progresses."""

    seed: int
    steps: list[StepReport] = field(default_factory=list)
    before: Evaluation | None = None
    after: Evaluation | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    sampling: SamplingTime = field(default_factory=SamplingTime)

    @property
    def differences(self) -> list[float]:
        """After − before for each held-out task."""
        if self.before is None or self.after is None:
            return []
        pairs = zip(self.before.task_means, self.after.task_means, strict=True)
        return [after - before for before, after in pairs]

    @property
    def logprob_gap_mean(self) -> float | None:
        """Mean over the trained tokens of all steps."""
        known = [step.update for step in self.steps if step.update.logprob_gap_mean is not None]
        tokens = sum(update.trained_tokens for update in known)
        gaps = sum((update.logprob_gap_mean or 0.0) * update.trained_tokens for update in known)
        return gaps / tokens if tokens else None

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "heldout": {
                "before": _evaluation_json(self.before),
                "after": _evaluation_json(self.after),
                "paired_difference": difference_json(self.differences),
            },
            "logprob_gap_mean": self.logprob_gap_mean,
            "sampling": self.sampling.as_json(),
            "seconds": self.seconds,
            "steps": [asdict(step) for step in self.steps],
        }


def _evaluation_json(evaluation: Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    return {**asdict(evaluation.estimate), **asdict(evaluation)}


def difference_json(differences: Sequence[float]) -> dict[str, float | None] | None:
    return paired_difference(differences)._asdict() if len(differences) > 1 else None


def step_line(step: StepReport, steps: int) -> str:
    """A step in one line."""
    update, parts = step.update, [f"step {step.step:>3}/{steps}", f"reward {step.reward:.3f}"]
    if update.loss is None:
        parts.append("nothing to learn: all members of each group have the same reward")
    else:
        parts += [
            f"loss {update.loss:+.4f}",
            f"|learner − sampler| {update.logprob_gap_mean:.4f} (max {update.logprob_gap_max:.3f})",
            f"groups {update.trained_groups}/{update.trained_groups + update.skipped_groups}",
            f"tokens {update.trained_tokens} trained, {update.computed_tokens} computed of "
            f"{update.sequence_tokens}",
        ]
    spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in step.seconds.items())
    return "  ".join([*parts, f"seconds: {spent}"])


def evaluation_line(name: str, evaluation: Evaluation) -> str:
    estimate = evaluation.estimate
    samples = sum(map(len, evaluation.rewards))
    return (
        f"held-out {name}: {estimate.mean:.3f} {_interval(estimate.low, estimate.high)}, "
        f"{estimate.tasks} tasks, {samples} rollouts"
    )


def difference_line(name: str, differences: Sequence[float]) -> str:
    difference: Difference = paired_difference(differences)
    interval = _interval(difference.low, difference.high, "+.3f")
    return f"{name}: {difference.value:+.3f} {interval}, paired over {len(differences)} tasks"


def sampling_line(run: RunReport) -> str:
    spent = run.sampling
    parts = [f"seed {run.seed}: sampled for {spent.wall_s:.1f} s"]
    if spent.overhead is not None:
        parts.append(f"no generation during {spent.overhead:.1%} of this time")
    parts.append(f"CPU time of the event loop: {spent.loop_cpu_s / spent.wall_s:.1%} of this time")
    return ", ".join(parts)


def _interval(low: float | None, high: float | None, form: str = ".3f") -> str:
    if low is None or high is None:
        return "(no interval)"
    return f"[{low:{form}}, {high:{form}}]"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file atomically: a reader gets the old or the new version, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def draw_curve(path: Path, title: str, runs: Sequence[RunReport]) -> None:
    """Draw the training reward per step (left) and the held-out reward before and after (right)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10, 4), width_ratios=[3, 1], sharey=True, layout="constrained"
    )
    for number, run in enumerate(runs):
        colour, label = f"C{number}", f"seed {run.seed}"
        steps, rewards = [step.step for step in run.steps], [step.reward for step in run.steps]
        left.plot(steps, rewards, ".", color=colour, alpha=0.4)
        left.plot(steps, smoothed(rewards), color=colour, label=label)
        offset = 0.06 * (number - (len(runs) - 1) / 2)
        _draw_heldout(right, run, colour, offset)
    left.set(title=title, xlabel="step", ylabel="mean reward", ylim=(-0.03, 1.03))
    left.legend(loc="lower right")
    left.grid(alpha=0.3)
    right.set(title="held-out, 95 % intervals", xlim=(-0.4, 1.4), xticks=[0, 1])
    right.set_xticklabels(["before", "after"])
    right.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_heldout(axes: Any, run: RunReport, colour: str, offset: float) -> None:
    found = [(place, one.estimate) for place, one in enumerate((run.before, run.after)) if one is not None]
    means = [estimate.mean for _, estimate in found]
    lows = [estimate.mean if estimate.low is None else estimate.low for _, estimate in found]
    highs = [estimate.mean if estimate.high is None else estimate.high for _, estimate in found]
    reaches = [
        [mean - low for mean, low in zip(means, lows, strict=True)],
        [high - mean for mean, high in zip(means, highs, strict=True)],
    ]
    axes.errorbar([place + offset for place, _ in found], means, reaches, fmt="o-", color=colour, capsize=4)


def smoothed(values: Sequence[float]) -> list[float]:
    """An exponential moving average, corrected for the bias of the first values."""
    result, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = _SMOOTHING * total + value, _SMOOTHING * weight + 1.0
        result.append(total / weight)
    return result
