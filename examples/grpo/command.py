"""What both commands have in common: their options, seeds one after the other, files and lines."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from examples.grpo.learner import LearnerSettings
from examples.grpo.reporting import (
    RunReport,
    difference_json,
    difference_line,
    draw_curve,
    evaluation_line,
    sampling_line,
    step_line,
    write_json,
)
from examples.grpo.training import Plan
from nemo_gym.errors import ConfigError

Tell = Callable[[RunReport], None]
SMOKE = Plan(steps=2, prompts_per_step=2, group_size=4, heldout_tasks=4, heldout_samples=1)
"""Enough to see that all of it works, not that it learns."""


@dataclass(frozen=True)
class Variant:
    """A task to learn."""

    name: str
    title: str
    plan: Plan
    learner: LearnerSettings
    play: Callable[[Plan, LearnerSettings, RunReport, Tell], Awaitable[None]]
    """One run, from loading the policy to the last held-out task."""
    seeds: Sequence[int] = (0,)
    """A run for each; as many as the claim takes that it learns."""


def main(variant: Variant, arguments: Sequence[str] | None = None) -> None:
    began = time.perf_counter()
    parser = _parser(variant)
    options = parser.parse_args(arguments)
    try:
        plan, settings = _plan(variant, options), _learner(variant, options)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(options.threads)
    results = _Results(variant, plan, settings, options.output)
    try:
        for seed in _seeds(variant, options):
            asyncio.run(variant.play(plan, settings, results.new_run(seed), results.tell))
    except ConfigError as error:
        parser.error(str(error))
    results.finish(time.perf_counter() - began)


class _Results:
    """The runs of a command so far, on disk after every step."""

    def __init__(self, variant: Variant, plan: Plan, settings: LearnerSettings, output: Path) -> None:
        self._variant, self._plan, self._settings, self._output = variant, plan, settings, output
        self._runs: list[RunReport] = []
        self._total_s: float | None = None

    def new_run(self, seed: int) -> RunReport:
        self._runs.append(RunReport(seed))
        print(f"{self._variant.title}, seed {seed}", flush=True)
        return self._runs[-1]

    def tell(self, run: RunReport) -> None:
        if run.after is not None and run.before is not None:
            print(evaluation_line("after", run.after), flush=True)
            print(difference_line("after − before", run.differences), flush=True)
        elif run.steps:
            print(step_line(run.steps[-1], self._plan.steps), flush=True)
        elif run.before is not None:
            print(evaluation_line("before", run.before), flush=True)
        write_json(self._output / "metrics.json", self._as_json())

    def finish(self, total_s: float) -> None:
        self._total_s = total_s
        metrics, curve = self._output / "metrics.json", self._output / "curve.png"
        write_json(metrics, self._as_json())
        draw_curve(curve, self._variant.title, self._runs)
        if len(self._runs) > 1:
            print(difference_line("all seeds, after − before", self._differences()))
        for run in self._runs:
            print(sampling_line(run))
        print(f"{total_s:.0f} s; {metrics}, {curve}")

    def _differences(self) -> list[float]:
        return [difference for run in self._runs for difference in run.differences]

    def _as_json(self) -> dict[str, Any]:
        return {
            "variant": self._variant.name,
            "plan": asdict(self._plan),
            "learner": asdict(self._settings),
            "threads": torch.get_num_threads(),
            "total_s": self._total_s,
            "paired_difference": difference_json(self._differences()),
            "runs": [run.as_json() for run in self._runs],
        }


def _parser(variant: Variant) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.grpo.{variant.name}",
        description=f"GRPO: {variant.title}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    plan, whole, default = variant.plan, {"type": int}, argparse.SUPPRESS
    parser.add_argument("--smoke", action="store_true", help="a run of two small steps")
    parser.add_argument("--steps", **whole, default=default, help=f"updates of the policy ({plan.steps})")
    parser.add_argument(
        "--prompts-per-step", **whole, default=default, help=f"groups ({plan.prompts_per_step})"
    )
    parser.add_argument("--group-size", **whole, default=default, help=f"rollouts of one ({plan.group_size})")
    parser.add_argument(
        "--heldout-tasks", **whole, default=default, help=f"never learnt from ({plan.heldout_tasks})"
    )
    parser.add_argument(
        "--heldout-samples", **whole, default=default, help=f"rollouts of each ({plan.heldout_samples})"
    )
    parser.add_argument(
        "--refit-every", **whole, default=default, help=f"updates between refits ({plan.refit_every})"
    )
    parser.add_argument("--learning-rate", type=float, default=variant.learner.learning_rate)
    parser.add_argument(
        "--seeds",
        "--seed",
        **whole,
        nargs="+",
        default=default,
        help=f"a run for each ({' '.join(map(str, variant.seeds))})",
    )
    parser.add_argument("--threads", **whole, default=len(os.sched_getaffinity(0)), help="of the learner")
    parser.add_argument("--output", type=Path, default=Path("results/grpo") / variant.name, help="a folder")
    return parser


def _plan(variant: Variant, options: argparse.Namespace) -> Plan:
    chosen = asdict(SMOKE if options.smoke else variant.plan)
    chosen |= {name: value for name, value in vars(options).items() if name in chosen}
    return Plan(**chosen)


def _seeds(variant: Variant, options: argparse.Namespace) -> Sequence[int]:
    chosen: Sequence[int] = getattr(options, "seeds", variant.seeds[:1] if options.smoke else variant.seeds)
    return chosen


def _learner(variant: Variant, options: argparse.Namespace) -> LearnerSettings:
    return LearnerSettings(**asdict(variant.learner) | {"learning_rate": options.learning_rate})
