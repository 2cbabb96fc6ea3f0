"""The training loop: sample groups, update, refit the sampler; held-out tasks before and after.

Invariants: a group has the version of the weights that sampled it; held-out tasks are never trained on. They
are played with the same seeds before and after, so the differences are paired.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from examples.grpo.reporting import Evaluation, RunReport, SamplingTime, StepReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.grpo.learner import Learner, UpdateReport
    from nemo_rl.data.interfaces import DatumSpec
    from nemo_rl.experience.interfaces import PromptGroupRecord
    from nemo_rl.experience.rollout_manager import RolloutManager

EVALUATION_SEED = 1_000_003
"""Added to a run's seed, so that held-out tasks and training use different seeds."""


@dataclass(frozen=True)
class Plan:
    """The size of a run."""

    steps: int
    prompts_per_step: int
    group_size: int
    heldout_tasks: int
    heldout_samples: int
    """Rollouts per held-out task, before and after."""
    refit_every: int = 1
    """Updates between two transfers of the weights to the sampler."""

    @property
    def training_tasks(self) -> int:
        return self.steps * self.prompts_per_step


MINIMA = {
    "steps": 1,
    "prompts_per_step": 1,
    "group_size": 2,  # a rollout is compared with others of its prompt
    "heldout_tasks": 2,  # an interval needs two
    "heldout_samples": 1,
    "refit_every": 1,
}
"""The smallest value of each field of a plan."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of a plan. Each training prompt is used once."""

    training: Sequence[DatumSpec]
    heldout: Sequence[DatumSpec]


class Arena(Protocol):
    """Where the rollouts of a policy are played, and how the sampler gets the weights."""

    def manager(self, group_size: int, seed: int) -> RolloutManager: ...

    async def refit(self, version: int) -> None:
        """Make the sampler use the learner's current weights."""

    async def learn(self, learner: Learner, records: Sequence[PromptGroupRecord]) -> UpdateReport:
        """Update the learner's weights while nothing is sampled."""

    def generating_s(self) -> float | None:
        """The time spent on generation so far; None if that happens in another process."""


class Clock:
    """The seconds spent on each part of a run."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    @contextmanager
    def time(self, label: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._add(label, time.perf_counter() - began)

    def add(self, other: Clock) -> None:
        for label, seconds in other.seconds.items():
            self._add(label, seconds)

    def _add(self, label: str, seconds: float) -> None:
        self.seconds[label] = self.seconds.get(label, 0.0) + seconds


async def train(
    arena: Arena,
    learner: Learner,
    plan: Plan,
    prompts: Prompts,
    report: RunReport,
    on_progress: Callable[[RunReport], None],
) -> None:
    """Run the whole training; `on_progress` is called when the report has changed."""
    clock = Clock(report.seconds)
    manager = arena.manager(plan.group_size, report.seed)
    evaluator = arena.manager(plan.heldout_samples, report.seed + EVALUATION_SEED)
    with clock.time("refitting"):
        await arena.refit(0)
    with clock.time("evaluating"):
        report.before = await _evaluated(evaluator, prompts.heldout)
    on_progress(report)
    for step in range(1, plan.steps + 1):
        samples = prompts.training[(step - 1) * plan.prompts_per_step : step * plan.prompts_per_step]
        step_clock = Clock({})
        with step_clock.time("sampling"), _sampling(arena, report.sampling):
            records = await asyncio.gather(*map(manager.run_rollout, samples))
        with step_clock.time("learning"):
            update = await arena.learn(learner, records)
        if step % plan.refit_every == 0 or step == plan.steps:
            with step_clock.time("refitting"):
                await arena.refit(step)
            manager.set_weight_version(step)
            evaluator.set_weight_version(step)
        clock.add(step_clock)
        report.steps.append(_step_report(step, records, update, step_clock.seconds))
        on_progress(report)
    with clock.time("evaluating"):
        report.after = await _evaluated(evaluator, prompts.heldout)
    on_progress(report)


@contextmanager
def _sampling(arena: Arena, spent: SamplingTime) -> Iterator[None]:
    wall_s, loop_cpu_s, generating_s = time.perf_counter(), time.thread_time(), arena.generating_s()
    yield
    spent.wall_s += time.perf_counter() - wall_s
    spent.loop_cpu_s += time.thread_time() - loop_cpu_s
    if generating_s is not None:
        spent.generating_s = (spent.generating_s or 0.0) + (arena.generating_s() or 0.0) - generating_s


async def _evaluated(manager: RolloutManager, heldout: Sequence[DatumSpec]) -> Evaluation:
    records = await asyncio.gather(*map(manager.run_rollout, heldout))
    return Evaluation(
        rewards=[[completion.reward for completion in record.completions] for record in records],
        weight_versions=_versions(records),
    )


def _versions(records: Sequence[PromptGroupRecord]) -> list[int]:
    """The versions of the weights that sampled the groups."""
    return sorted({version for record in records for version in record.weight_versions or ()})


def _step_report(
    step: int, records: Sequence[PromptGroupRecord], update: UpdateReport, seconds: dict[str, float]
) -> StepReport:
    rewards = [completion.reward for record in records for completion in record.completions]
    return StepReport(
        step=step,
        reward=sum(rewards) / len(rewards),
        rollouts=len(rewards),
        weight_versions=_versions(records),
        update=update,
        seconds=seconds,
    )
