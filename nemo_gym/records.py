"""Records of rollouts: their keys and agents, and how files of them are read.

A line that is not a rollout is an error with file and line number. `BadLines` decides whether it is raised,
or the line is skipped and listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.codec import decode_json
from nemo_gym.errors import InputError
from nemo_gym.journal import Line, read_lines
from nemo_gym.types import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

Record = dict[str, Any]

_ROLLOUT_BITS = 31
_MOST = (1 << _ROLLOUT_BITS) - 1


class Key(NamedTuple):
    """The identity of one rollout."""

    task: int
    rollout: int

    def __str__(self) -> str:
        return f"{self.task}:{self.rollout}"


def packed(key: tuple[int, int]) -> int:
    """The packed key: one integer that sorts like the key, small enough to keep millions in memory."""
    return key[0] << _ROLLOUT_BITS | key[1]


def unpacked(packed_key: int) -> Key:
    return Key(packed_key >> _ROLLOUT_BITS, packed_key & (1 << _ROLLOUT_BITS) - 1)


def parsed(line: bytes) -> Any:
    """A line as data; raises ValueError if it is not valid JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return decode_json(line)


def key_of(record: Record) -> Key | None:
    """The key; None if an index is missing, not an integer, or too large for a packed key."""
    task, rollout = record.get(TASK_INDEX_KEY_NAME), record.get(ROLLOUT_INDEX_KEY_NAME)
    if type(task) is int and type(rollout) is int and 0 <= task <= _MOST and 0 <= rollout <= _MOST:
        return Key(task, rollout)
    return None


def are_indices(values: Sequence[Any]) -> bool:
    """Whether all of these values can be part of a key. There must be at least one."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= _MOST


def agent_of(record: Record) -> str:
    ref = record.get(AGENT_REF_KEY_NAME)
    return str(ref.get("name") or "") if isinstance(ref, dict) else ""


@dataclass
class BadLines:
    """How lines that cannot be used are handled."""

    are_skipped: bool = False
    """Whether they are skipped and counted; otherwise the first raises an error."""
    count: int = 0
    first: list[str] = field(default_factory=list)
    """The messages of the first of them."""

    def take(self, error: InputError) -> None:
        """Raise the error, or count the line as skipped."""
        if not self.are_skipped:
            raise error
        self.count += 1
        if len(self.first) < _MOST_NAMED:
            self.first.append(str(error).removesuffix(f", {SKIP_HINT}"))

    def warning_lines(self) -> list[str]:
        """A warning that lists the skipped lines; empty if there are none."""
        if not self.count:
            return []
        head = f"warning: {self.count} line{'s' if self.count > 1 else ''} skipped:"
        more = [f"  … and {self.count - len(self.first)} more"] if self.count > len(self.first) else []
        return [head, *(f"  {text}" for text in self.first), *more]


_MOST_NAMED = 10
SKIP_HINT = "or skip such lines with +skip_bad_lines=true"


class RolloutLine(NamedTuple):
    """One rollout of a file."""

    line: Line
    record: Record
    key: Key
    agent: str


def read_rollouts(
    path: Path, bad_lines: BadLines | None = None, *, once: bool = False
) -> Iterator[RolloutLine]:
    """Every rollout of a file; with `once`, a rollout whose key occurred before is a bad line."""
    bad_lines = BadLines() if bad_lines is None else bad_lines
    first_lines: dict[int, int] = {}
    for line, record in read_records(path, bad_lines):
        try:
            rollout = checked_rollout(path, line, record)
            if once:
                refuse_repeated(path, rollout, first_lines)
        except InputError as error:
            bad_lines.take(error)
        else:
            yield rollout


def read_records(path: Path, bad_lines: BadLines) -> Iterator[tuple[Line, Record]]:
    """Every JSON object of a file with its line. Blank lines are skipped."""
    try:
        for line in read_lines(path):
            if line.data.strip():
                try:
                    record = _checked_record(path, line)
                except InputError as error:
                    bad_lines.take(error)
                else:
                    yield line, record
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; check its name and permissions"
        ) from error


def _checked_record(path: Path, line: Line) -> Record:
    place = f"{path}:{line.number}"
    try:
        record = parsed(line.data)
    except (ValueError, RecursionError) as error:
        if not line.is_ended:
            raise InputError(
                f"{place}: the last line is incomplete, probably because a run was killed; finish that run: "
                f"collect again with +output_jsonl_fpath={path} +resume_from_cache=true, {SKIP_HINT}"
            ) from error
        raise InputError(f"{place}: not JSON: {error}; repair or remove the line, {SKIP_HINT}") from error
    if not isinstance(record, dict):
        raise InputError(f"{place}: not a JSON object, so not a rollout; give a rollouts file, {SKIP_HINT}")
    return record


def checked_rollout(path: Path, line: Line, record: Record) -> RolloutLine:
    """A line as a rollout; raises an error if it is not one."""
    place = f"{path}:{line.number}"
    key = key_of(record)
    if key is None:
        raise InputError(
            f"{place}: not a rollout: {TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME} must be integers; "
            f"give a rollouts file, {SKIP_HINT}"
        )
    agent = agent_of(record)
    if not agent:
        raise InputError(
            f'{place}: has no agent; add "{AGENT_REF_KEY_NAME}": {{"name": "<agent>"}} to it, {SKIP_HINT}'
        )
    return RolloutLine(line, record, key, agent)


def refuse_repeated(path: Path, rollout: RolloutLine, first_lines: dict[int, int]) -> None:
    """Raise an error if the key occurred in an earlier line; `first_lines` holds the keys seen so far."""
    number = rollout.line.number
    first = first_lines.setdefault(packed(rollout.key), number)
    if first != number:
        raise InputError(
            f"{path}:{number}: repeats rollout {rollout.key} of line {first}; remove one of them, {SKIP_HINT}"
        )
