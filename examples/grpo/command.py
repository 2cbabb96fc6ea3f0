"""What both commands have in common: their options, seeds one after the other, files and lines."""

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
from examples.grpo.training import LEAST, Plan
from nemo_gym.errors import ConfigError
from nemo_gym.machine import available_cores

Tell = Callable[[RunReport], None]
SMOKE = Plan(steps=2, prompts_per_step=2, group_size=4, heldout_tasks=4, heldout_samples=1)
"""Enough to see that all of it works, not that it learns."""
_NUMBERS = {
    "steps": "updates of the policy",
    "prompts_per_step": "groups",
    "group_size": "rollouts of one",
    "heldout_tasks": "never learnt from",
    "heldout_samples": "rollouts of each",
    "refit_every": "updates between refits",
}
"""Of a plan, as options."""
_RESULTS = Path("results/grpo")


@dataclass(frozen=True)
class Variant:
    """A task to learn."""

    name: str
    title: str
    plan: Plan
    learner: LearnerSettings
    play: Callable[[Plan, LearnerSettings, RunReport, Tell], Coroutine[Any, Any, None]]
    """One run, from loading the policy to the last held-out task."""
    seeds: Sequence[int] = (0,)
    """A run for each; as many as the claim takes that it learns."""


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
            asyncio.run(variant.play(plan, settings, results.new_run(seed), results.tell))
            gc.collect()  # model and optimizer are in cycles: two of them would be there at once
    except ConfigError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"Interrupted; what was measured so far is in {results.metrics}", file=sys.stderr)
        sys.exit(130)
    results.finish(time.perf_counter() - began)


class _Results:
    """The runs of a command so far, on disk after every step."""

    def __init__(self, variant: Variant, plan: Plan, settings: LearnerSettings, output: Path) -> None:
        self._variant, self._plan, self._settings = variant, plan, settings
        self.metrics, self._curve = output / "metrics.json", output / "curve.png"
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
        write_json(self.metrics, self._as_json())

    def finish(self, total_s: float) -> None:
        self._total_s = total_s
        write_json(self.metrics, self._as_json())
        draw_curve(self._curve, self._variant.title, self._runs)
        if len(self._runs) > 1:
            print(difference_line("all seeds, after − before", self._differences()))
        for run in self._runs:
            print(sampling_line(run))
        print(f"{total_s:.0f} s; {self.metrics}, {self._curve}")

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
    parser.add_argument("--smoke", action="store_true", help="a run of two small steps")
    for name, what in _NUMBERS.items():
        # Left out where it is not given, so that it does not hide that of the smoke run.
        option, usual = f"--{name.replace('_', '-')}", getattr(variant.plan, name)
        parser.add_argument(option, type=int, default=argparse.SUPPRESS, help=f"{what} ({usual})")
    parser.add_argument(
        "--learning-rate", type=float, default=learning_rate, help=f"of AdamW ({learning_rate:g})"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help=f"a run for each ({seeds})")
    parser.add_argument("--threads", type=int, default=threads, help=f"of the learner ({threads})")
    parser.add_argument("--output", type=Path, help=f"a folder ({output}; of a smoke run {output}_smoke)")
    return parser


def _plan(variant: Variant, options: argparse.Namespace) -> Plan:
    chosen = asdict(SMOKE if options.smoke else variant.plan)
    chosen |= {name: value for name, value in vars(options).items() if name in chosen}
    for name, least in LEAST.items():
        if chosen[name] < least:
            raise ConfigError(f"--{name.replace('_', '-')} {chosen[name]}: {least} at least")
    return Plan(**chosen)


def _seeds(variant: Variant, options: argparse.Namespace) -> Sequence[int]:
    if options.seeds is None:
        return variant.seeds[:1] if options.smoke else variant.seeds
    if len(set(options.seeds)) < len(options.seeds):
        raise ConfigError(
            f"--seeds {' '.join(map(str, options.seeds))}: the same run twice tells nothing more"
        )
    return list(options.seeds)


def _learner(variant: Variant, options: argparse.Namespace) -> LearnerSettings:
    if not 0 < options.learning_rate < math.inf:
        raise ConfigError(f"--learning-rate {options.learning_rate}: more than 0")
    if options.threads < 1:
        raise ConfigError(f"--threads {options.threads}: 1 at least")
    return LearnerSettings(**asdict(variant.learner) | {"learning_rate": options.learning_rate})


def _folder(variant: Variant, options: argparse.Namespace) -> Path:
    """Where results go, which can be written to; those of an earlier run stay under another name."""
    usual = _RESULTS / (f"{variant.name}_smoke" if options.smoke else variant.name)
    folder: Path = usual if options.output is None else options.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"--output {folder}: {error.strerror}; name a folder that can be written to"
        ) from error
    for earlier in (folder / "metrics.json", folder / "curve.png"):
        if earlier.exists():
            made = time.strftime("%Y%m%d-%H%M%S", time.localtime(earlier.stat().st_mtime))
            earlier.rename(earlier.with_name(f"{earlier.stem}.{made}{earlier.suffix}"))
    return folder
