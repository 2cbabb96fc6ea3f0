"""`ng_show`: print rollouts of a file so that people can read them."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from nemo_gym.analysis.rollout_lookup import Failures, RolloutFile
from nemo_gym.analysis.rollout_text import Reader
from nemo_gym.cli.command import Command
from nemo_gym.cli.output import complain, json_line, say
from nemo_gym.config import GymConfig
from nemo_gym.config.roots import expand
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError, InputError
from nemo_gym.metrics.columns import REWARD, Columns
from nemo_gym.records import Key, Record
from nemo_gym.rollout_collection.results.aggregate import may_hold_rollouts
from nemo_gym.terminal import counted, one_line, table
from nemo_gym.text_fit import fitted_columns, terminal_columns, wrapped

_KEY = re.compile(r"(\d+)(?::(\d+))?")
_FAILURES = "_failures.jsonl"
_SELECTIONS = ("key", "worst", "best", "random", "tool", "failed")
_LONGEST_LINE = 100
"""Columns of a line, also if the terminal is wider: longer lines are hard to read."""
_MOST_NAMED = 8


class ShowConfig(BaseNeMoGymCLIConfig):
    input_fpath: str | None = None
    """A rollouts file. Default: the newest one below `results`."""
    key: str | None = None
    """The rollout with this key: `17:2`, task index and rollout index, or `17` for all rollouts of a task."""
    worst: int | None = Field(default=None, ge=1)
    """Show this many rollouts, those with the lowest rewards."""
    best: int | None = Field(default=None, ge=1)
    """Show this many rollouts, those with the highest rewards."""
    random: int | None = Field(default=None, ge=1)
    """Show this many rollouts, drawn at random."""
    tool: str | None = None
    """Show rollouts that call this tool."""
    failed: bool = False
    """Show rollouts that have failed and not succeeded since, from the failures file."""
    most: int = Field(default=5, ge=1)
    """How many rollouts to show with `tool`, `failed` or the index of a task."""
    full: bool = False
    """Show long texts and long prompts completely."""
    json_output: bool = False
    """Print each rollout as a line of JSON instead of text."""


def run(config: GymConfig, options: ShowConfig) -> int:
    path, key = _target(options)
    if path.name.endswith(_FAILURES):
        path = path.with_name(path.name.removesuffix(_FAILURES) + ".jsonl")
        options = options.model_copy(update={"failed": options.failed or key is None})
    options = options.model_copy(update={"key": key})
    selected = [name for name in _SELECTIONS if getattr(options, name)]
    if len(selected) > 1:
        raise ConfigError(f"ng_show: {' and '.join(selected)} exclude each other; give one of them")
    shown = _Shown(path, options)
    for line in shown.lines() if selected else shown.overview():
        say(line)
    for line in shown.file.bad_lines.warning_lines():
        complain(line)
    return 0


def _target(options: ShowConfig) -> tuple[Path, str | None]:
    """The file and the key; a key may come without a file."""
    given, key = options.input_fpath, options.key
    if given is not None and key is None and _KEY.fullmatch(given) and not expand(given).exists():
        given, key = None, given
    if given is not None:
        return expand(given), key
    files = [path for path in Path("results").rglob("*.jsonl") if may_hold_rollouts(path)]
    if not files:
        raise ConfigError("ng_show: no rollouts files below results; name one: ng show out/a.jsonl 17:2")
    return max(files, key=lambda path: path.stat().st_mtime), key


class _Shown:
    """The rollouts of one file that are shown."""

    def __init__(self, path: Path, options: ShowConfig) -> None:
        self._path = path
        self._options = options
        self._columns = min(terminal_columns(sys.stdout), _LONGEST_LINE)
        self._reader = Reader(self._columns, options.full)
        self.file = RolloutFile.read(path) if path.exists() or not options.failed else RolloutFile(path)
        self._failures = Failures(path, self.file)

    def overview(self) -> Iterator[str]:
        """What is in the file, and how to see more."""
        file = self.file
        yield f"{self._path}: {counted(len(file), 'rollout')} of {counted(file.tasks, 'task')}"
        if file.is_numbered:
            yield "The rollouts have no keys. They are numbered from 0, as tasks with one rollout each."
        rows = [
            [one_line(agent) or "(no agent)", str(len(columns)), *_rewards(columns)]
            for agent, columns in file.columns.items()
        ]
        if rows:
            header = ("agent", "rollouts", "mean reward", "min", "max")
            yield table(*fitted_columns(header, rows, self._columns))
        if len(self._failures):
            yield f"Failed: {counted(len(self._failures), 'rollout')} in {self._failures.path}"
        key = next(iter(file.first(1)), "17:2")
        yield f"To see a rollout: ng show {self._path} {key}"
        choices = "Instead of the key: --worst 5, --best 5, --random 3, --tool NAME or --failed"
        yield from wrapped(choices, self._columns)

    def lines(self) -> Iterator[str]:
        """The selected rollouts."""
        options = self._options
        if options.failed:
            return self._failed(self._failures.sorted_keys())
        if options.key is not None:
            return self._with_key(options.key)
        if options.worst is not None:
            return self._rollouts(self.file.worst(options.worst))
        if options.best is not None:
            return self._rollouts(self.file.best(options.best))
        if options.random is not None:
            return self._rollouts(self.file.sample(options.random))
        assert options.tool is not None, "something is selected"
        return self._rollouts(self.file.calling(options.tool, options.most))

    def _with_key(self, text: str) -> Iterator[str]:
        found = _KEY.fullmatch(text)
        if found is None:
            raise ConfigError(f"ng_show: {text!r} is not a key; a key is <task>:<rollout>, such as 17:2")
        task = int(found[1])
        keys = self.file.of_task(task) if found[2] is None else [Key(task, int(found[2]))]
        if keys and keys[0] in self.file:
            return self._some(keys)
        failed = [
            key for key in self._failures.sorted_keys() if key in keys or (not keys and key.task == task)
        ]
        if failed:
            return self._failed(failed)
        near = self.file.of_task(task) or self.file.first(_MOST_NAMED)
        names = ", ".join(map(str, near[:_MOST_NAMED])) or "no rollouts"
        raise InputError(f"{self._path}: no rollout {text}; the file has {names}{', …' if near else ''}")

    def _some(self, keys: Sequence[Key]) -> Iterator[str]:
        """The first of these rollouts, and how many there are."""
        yield from self._rollouts(keys[: self._options.most])
        yield from self._left_out(len(keys))

    def _left_out(self, number: int) -> Iterator[str]:
        if number > self._options.most:
            yield f"\n… {number - self._options.most} more; +most={number} shows all"

    def _rollouts(self, keys: Sequence[Key]) -> Iterator[str]:
        if not keys:
            without = " with a reward" if len(self.file) else ""
            raise InputError(f"{self._path}: has no rollouts{without}; ng show {self._path} says what it has")
        for number, record in enumerate(self.file.rollouts(keys)):
            yield from self._block(number, record, self._reader.rollout(record))

    def _failed(self, keys: list[Key]) -> Iterator[str]:
        if not keys:
            path = self._failures.path
            reason = (
                "every rollout in it has succeeded since, or was cancelled" if path.exists() else "not found"
            )
            raise InputError(f"{path}: {reason}; there are no failures to show")
        shown = keys[: self._options.most]
        rows = self._failures.rows(shown)
        for number, (key, record) in enumerate(zip(shown, self._failures.records(shown), strict=True)):
            yield from self._block(number, record, self._reader.failure(record, rows.get(key)))
        yield from self._left_out(len(keys))

    def _block(self, number: int, record: Record, lines: Iterator[str]) -> Iterator[str]:
        if self._options.json_output:
            yield json_line(record)
            return
        if number:
            yield ""
        yield from lines


def _rewards(columns: Columns) -> list[str]:
    rewards = [reward for reward in columns.values(REWARD) if reward == reward]
    if not rewards:
        return ["", "", ""]
    return [f"{value:.4g}" for value in (sum(rewards) / len(rewards), min(rewards), max(rewards))]


COMMAND = Command(
    "show",
    ShowConfig,
    run,
    "ng_show results/calculator.jsonl 17:2",
    reads_files=False,
    positional=("input_fpath", "key"),
)
