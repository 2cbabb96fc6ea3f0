"""Checks that a task index means the same task in two runs: equal indices alone do not prove it."""

import json
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from nemo_gym.analysis.transcript import prompt_items
from nemo_gym.journal import read_lines
from nemo_gym.metrics.statistics import Places
from nemo_gym.path_utils import materialized_path_for
from nemo_gym.records import Record, key_of, parsed
from nemo_gym.terminal import one_line
from nemo_gym.types import AGENT_REF_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME, SKILLS_REF_KEY_NAME

_SAMPLE_SIZE = 100
"""Tasks to check if their rollouts have to be read for it."""
_MOST_NAMED = 5
_PROMPT_CHARACTERS = 200
_RUN_FIELDS = {AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME}
"""Fields that may differ between two runs of one task; of the last, everything but the prompt."""


@dataclass(frozen=True)
class SameTasks:
    """The result of the check."""

    shared: int
    checked: int = 0
    basis: Literal["materialized inputs", "prompts in the rollouts"] | None = None
    """What was compared; None if nothing could be."""
    different_count: int = 0
    """Among the checked tasks."""
    first_different: tuple[int, ...] = ()
    only_prompts: bool = False
    """Whether the different tasks differ in their prompts only."""

    @property
    def none_is_same(self) -> bool:
        """Whether the two runs played different tasks, as far as they were checked."""
        return 0 < self.checked == self.different_count and not self.only_prompts

    def warning(self) -> str | None:
        if not self.different_count:
            return None
        first = ", ".join(map(str, self.first_different))
        more = ", …" if self.different_count > len(self.first_different) else ""
        some = "" if self.checked == self.shared else f" that were checked (of {self.shared})"
        what, advice = "are not the same task in both runs", "compare runs of the same input"
        if self.only_prompts:
            what = "have a different prompt in B but are otherwise the same"
            advice = f"unless you want to compare prompts, {advice}"
        return f"{self.different_count} of {self.checked} shared tasks{some} {what}: {first}{more}; {advice}"


def prompt_of(row: Record) -> str:
    """The start of the last user message, or of any other text of the prompt."""
    items = prompt_items(row)
    user_texts = [item.text for item in items if item.role == "user" and item.text]
    text = (user_texts or [item.text for item in items if item.text] or [""])[-1] or ""
    return one_line(text[: 10 * _PROMPT_CHARACTERS])[:_PROMPT_CHARACTERS]


class Rows:
    """The offset of the first row of each task in a file."""

    def __init__(self, path: Path, tasks: Places, offsets: Places) -> None:
        self.path = path
        self.tasks, self._firsts = np.unique(tasks, return_index=True)
        self._offsets = offsets[self._firsts]

    def read(self, task: int) -> Record:
        """The row of a task; empty if it is missing or cannot be read."""
        place = int(np.searchsorted(self.tasks, task))
        if place == len(self.tasks) or self.tasks[place] != task:
            return {}
        try:
            with self.path.open("rb") as file:
                file.seek(int(self._offsets[place]))
                row = parsed(file.readline())
        except (OSError, ValueError, RecursionError):
            return {}
        return row if isinstance(row, dict) else {}


class Inputs(Rows):
    """The materialized inputs of a run, with digests of the fields that define a task."""

    def __init__(self, path: Path) -> None:
        tasks, offsets, own, prompts = (array("q") for _ in range(4))
        for line in read_lines(path):
            row = parsed(line.data)
            key = key_of(row) if isinstance(row, dict) else None
            if key is None or (
                tasks and tasks[-1] == key.task
            ):  # not a row, or another rollout of the same task
                continue
            params = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
            tasks.append(key.task)
            offsets.append(line.offset)
            own.append(_digest({name: row[name] for name in row if not _is_run_field(name)}))
            prompts.append(_digest(params.get("input") if isinstance(params, dict) else None))
        super().__init__(path, np.asarray(tasks, np.int64), np.asarray(offsets, np.int64))
        self._own, self._prompts = (np.asarray(part, np.int64)[self._firsts] for part in (own, prompts))

    def compared(self, other: "Inputs", tasks: Places) -> SameTasks:
        """Check those of these tasks that both runs have."""
        shared = np.intersect1d(np.intersect1d(tasks, self.tasks), other.tasks)
        here, there = np.searchsorted(self.tasks, shared), np.searchsorted(other.tasks, shared)
        is_same = self._own[here] == other._own[there]
        differs = ~is_same | (self._prompts[here] != other._prompts[there])
        has_own = self._own[here] != _digest({})  # otherwise nothing shows that it is the same task
        found = shared[differs]
        return SameTasks(
            len(tasks),
            len(shared),
            "materialized inputs",
            len(found),
            tuple(found[:_MOST_NAMED].tolist()),
            bool(len(found) and (is_same & has_own)[differs].all()),
        )


def _is_run_field(name: str) -> bool:
    return name in _RUN_FIELDS or name.startswith("_ng_")


def _digest(value: Any) -> int:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits and the like
        data = json.dumps(value, sort_keys=True).encode()
    return int.from_bytes(blake2b(data, digest_size=8).digest(), signed=True)


def read_inputs(a: Path, b: Path) -> tuple[Inputs, Inputs] | None:
    """The materialized inputs of two rollouts files; None if either is missing or damaged."""
    paths = [materialized_path_for(path) for path in (a, b)]
    if not all(path.is_file() for path in paths):
        return None
    try:
        return Inputs(paths[0]), Inputs(paths[1])
    except (OSError, ValueError, RecursionError):
        return None


def same_tasks(a: Rows, b: Rows, inputs: tuple[Inputs, Inputs] | None, tasks: Places) -> SameTasks:
    """Check these tasks by their materialized inputs, or by a sample of the rollouts if there are none."""
    if inputs is not None:
        found = inputs[0].compared(inputs[1], tasks)
        if found.checked:
            return found
    some = tasks[np.unique(np.linspace(0, len(tasks) - 1, _SAMPLE_SIZE).astype(int))].tolist()
    prompts = [(task, prompt_items(a.read(task)), prompt_items(b.read(task))) for task in some]
    both = [(task, ours, theirs) for task, ours, theirs in prompts if ours and theirs]
    if not both:
        return SameTasks(len(tasks))
    different = [task for task, ours, theirs in both if ours != theirs]
    first = tuple(different[:_MOST_NAMED])
    return SameTasks(len(tasks), len(both), "prompts in the rollouts", len(different), first)
