"""Shared by both commands: options, one run per seed, result files, printed lines."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
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
from examples.grpo.training import MINIMA, Plan
from nemo_gym.errors import ConfigError
from nemo_gym.machine import available_cores

OnProgress = Callable[[RunReport], None]
SMOKE = Plan(steps=2, prompts_per_step=2, group_size=4, heldout_tasks=4, heldout_samples=1)
"""Shows that everything works, but is too short to learn."""
_PLAN_HELP = {
    "steps": "updates of the policy",
    "prompts_per_step": "groups per step",
    "group_size": "rollouts per group",
    "heldout_tasks": "tasks that are only evaluated",
    "heldout_samples": "rollouts per held-out task",
    "refit_every": "updates between two exports of the weights to the sampler",
}
"""Help texts of the options that set a field of the plan."""
_RESULTS = Path("results/grpo")


@dataclass(frozen=True)
class Variant:
    """A task that a policy can learn, and how it is trained."""

    name: str
    title: str
    plan: Plan
    learner: LearnerSettings
    play: Callable[[Plan, LearnerSettings, RunReport, OnProgress], Coroutine[Any, Any, None]]
    """One run, from loading the policy to the last held-out task."""
    seeds: Sequence[int] = (0,)
    """One run per seed; enough of them to show that the policy learns."""


def main(variant: Variant, arguments: Sequence[str] | None = None) -> None:
    began = time.perf_counter()
    parser = _parser(variant)
    options = parser.parse_args(arguments)
    try:
        plan, settings, seeds = _plan(variant, options), _learner(variant, options), _seeds(variant, options)
        results = _Results(variant, plan, settings, _folder(variant, options))
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        torch.set_num_threads(options.threads)
        for seed in seeds:
            asyncio.run(variant.play(plan, settings, results.new_run(seed), results.show))
            gc.collect()  # reference cycles would keep this run's model and optimizer during the next run
    except ConfigError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"Interrupted; the results so far are in {results.metrics}", file=sys.stderr)
        sys.exit(130)
    results.finish(time.perf_counter() - began)


class _Results:
    """The runs of a command so far, written to disk after every step."""

    def __init__(self, variant: Variant, plan: Plan, settings: LearnerSettings, output: Path) -> None:
        self._variant, self._plan, self._settings = variant, plan, settings
        self.metrics, self._curve = output / "metrics.json", output / "curve.png"
        self._runs: list[RunReport] = []
        self._total_s: float | None = None

    def new_run(self, seed: int) -> RunReport:
        self._runs.append(RunReport(seed))
        print(f"{self._variant.title}, seed {seed}", flush=True)
        return self._runs[-1]

    def show(self, run: RunReport) -> None:
        """Print the latest line of a run and write the results."""
        if run.after is not None and run.before is not None:
            print(evaluation_line("after", run.after), flush=True)
            print(difference_line("after − before", run.differences), flush=True)
        elif run.steps:
            print(step_line(run.steps[-1], self._plan.steps), flush=True)
        elif run.before is not None:
            print(evaluation_line("before", run.before), flush=True)
        write_json(self.metrics, self._as_json())

    def finish(self, total_s: float) -> None:
        self._total_s = total_s
        write_json(self.metrics, self._as_json())
        draw_curve(self._curve, self._variant.title, self._runs)
        if len(self._runs) > 1:
            print(difference_line("all seeds, after − before", self._differences()))
        for run in self._runs:
            print(sampling_line(run))
        print(f"finished in {total_s:.0f} s; results: {self.metrics}, {self._curve}")

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
        prog=f"python -m examples.grpo.{variant.name}", description=f"GRPO: {variant.title}"
    )
    learning_rate, threads = variant.learner.learning_rate, available_cores()
    output, seeds = _RESULTS / variant.name, " ".join(map(str, variant.seeds))
    parser.add_argument("--smoke", action="store_true", help="run only two small steps")
    for name, text in _PLAN_HELP.items():
        # No default: a default would override the value of the smoke run.
        option, default = f"--{name.replace('_', '-')}", getattr(variant.plan, name)
        parser.add_argument(option, type=int, default=argparse.SUPPRESS, help=f"{text} (default: {default})")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=learning_rate,
        help=f"learning rate of AdamW (default: {learning_rate:g})",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=None, help=f"one run per seed (default: {seeds})"
    )
    parser.add_argument(
        "--threads", type=int, default=threads, help=f"threads of the learner (default: {threads})"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help=f"folder for the results (default: {output}, with --smoke {output}_smoke)",
    )
    return parser


def _plan(variant: Variant, options: argparse.Namespace) -> Plan:
    chosen = asdict(SMOKE if options.smoke else variant.plan)
    chosen |= {name: value for name, value in vars(options).items() if name in chosen}
    for name, minimum in MINIMA.items():
        if chosen[name] < minimum:
            raise ConfigError(f"--{name.replace('_', '-')} {chosen[name]}: must be at least {minimum}")
    return Plan(**chosen)


def _seeds(variant: Variant, options: argparse.Namespace) -> Sequence[int]:
    if options.seeds is None:
        return variant.seeds[:1] if options.smoke else variant.seeds
    if len(set(options.seeds)) < len(options.seeds):
        raise ConfigError(
            f"--seeds {' '.join(map(str, options.seeds))}: a seed is repeated; give each seed once"
        )
    return list(options.seeds)


def _learner(variant: Variant, options: argparse.Namespace) -> LearnerSettings:
    if not 0 < options.learning_rate < math.inf:
        raise ConfigError(f"--learning-rate {options.learning_rate}: must be a finite number above 0")
    if options.threads < 1:
        raise ConfigError(f"--threads {options.threads}: must be at least 1")
    return LearnerSettings(**asdict(variant.learner) | {"learning_rate": options.learning_rate})


def _folder(variant: Variant, options: argparse.Namespace) -> Path:
    """The folder for the results, checked to be writable. Results of an earlier run are renamed."""
    default = _RESULTS / (f"{variant.name}_smoke" if options.smoke else variant.name)
    folder: Path = default if options.output is None else options.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"--output {folder}: cannot write to this folder ({error.strerror}); choose another one"
        ) from error
    for earlier in (folder / "metrics.json", folder / "curve.png"):
        if earlier.exists():
            made = time.strftime("%Y%m%d-%H%M%S", time.localtime(earlier.stat().st_mtime))
            earlier.rename(earlier.with_name(f"{earlier.stem}.{made}{earlier.suffix}"))
    return folder
