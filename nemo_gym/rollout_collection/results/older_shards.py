"""Rollouts files without keys, written before rollouts had any: each distinct input is a task.

Such a file is copied with a key in every record; the copy is read instead, under the same name.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from nemo_gym.codec import encode_json
from nemo_gym.errors import InputError
from nemo_gym.records import parsed
from nemo_gym.types import (
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

_REWARD = "reward"
_KEYS = (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)


@dataclass
class KeyedCopies:
    """Copies of files without keys. The keys count up over all of them, in their order."""

    paths: list[Path]
    """The files to read: copies in place of files without keys."""
    copied: list[Path] = field(default_factory=list)
    """The files without keys."""
    tasks: dict[str, int] = field(default_factory=dict)
    """Task index by input."""
    _rollouts: Counter[int] = field(default_factory=Counter)
    _folder: Path | None = None

    @classmethod
    def of(cls, paths: list[Path]) -> "KeyedCopies":
        """Copy the files that need it. Files with and without keys cannot be combined."""
        older = [path for path in paths if _is_older(path)]
        copies = cls(list(paths))
        if older and len(older) < len(paths):
            keyed = next(path for path in paths if path not in older)
            raise InputError(
                f"{older[0]} has no {TASK_INDEX_KEY_NAME}, but {keyed} has; their tasks cannot be matched: "
                "aggregate them separately"
            )
        try:
            copies.paths = [copies._copy(number, path) for number, path in enumerate(older)] or list(paths)
        except BaseException:
            copies.remove()
            raise
        return copies

    def remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def notice(self) -> str | None:
        if not self.copied:
            return None
        names, number = ", ".join(map(str, self.copied)), len(self.tasks)
        return (
            f"No {TASK_INDEX_KEY_NAME} in {names}: each distinct input counts as a task, and its rollouts "
            f"are numbered in the order of the lines. Tasks: {number}."
        )

    def _copy(self, number: int, path: Path) -> Path:
        self._folder = self._folder or Path(mkdtemp(prefix="ng_aggregate_"))
        copy = self._folder / str(number) / path.name
        copy.parent.mkdir()
        with path.open("rb") as lines, copy.open("wb") as file:
            file.writelines(self._keyed(lines))
        self.copied.append(path)
        return copy

    def _keyed(self, lines: Iterable[bytes]) -> Iterable[bytes]:
        for line in lines:
            record = _record(line)
            if record is None:  # reported when the copy is read
                yield line
                continue
            task = self.tasks.setdefault(_input_of(record), len(self.tasks))
            keys = {TASK_INDEX_KEY_NAME: task, ROLLOUT_INDEX_KEY_NAME: self._rollouts[task]}
            self._rollouts[task] += 1
            yield encode_json({**record, **keys}) + b"\n"


def _is_older(path: Path) -> bool:
    """Whether the first record is a rollout without a key. A file that cannot be read is reported later."""
    try:
        with path.open("rb") as lines:
            first = next((record for line in lines if (record := _record(line)) is not None), None)
    except OSError:
        return False
    return first is not None and _REWARD in first and first.keys().isdisjoint(_KEYS)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parsed(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _input_of(record: dict[str, Any]) -> str:
    params = record.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    return json.dumps(params.get("input") if isinstance(params, dict) else None, sort_keys=True)
