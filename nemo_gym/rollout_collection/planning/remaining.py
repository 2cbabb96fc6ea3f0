"""What an earlier run left: plan - journal = work owed.

The keys in the output are done. Keys whose data failures have used up their attempts are left alone. All
others are owed.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.errors import JournalError
from nemo_gym.failures import AnyKind
from nemo_gym.journal import READ_BYTES
from nemo_gym.records import Key, Record, agent_of, key_of, packed, parsed, unpacked
from nemo_gym.rollout_collection.outcome import PlannedRollout
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

DATA_ATTEMPTS_A_RUN = 2
"""Tries in one run of a rollout whose input is at fault."""


@dataclass
class Owed:
    """The work that is left."""

    materialized: Path
    done: set[int] = field(default_factory=set)
    left_alone: dict[int, AnyKind] = field(default_factory=dict)
    data_attempts: dict[int, int] = field(default_factory=dict)
    """Used up in earlier runs."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Of any kind, in earlier runs."""
    max_attempts: int = 3
    by_agent: Counter[str] = field(default_factory=Counter)
    """Rollouts to run."""
    planned: int = 0
    left_alone_by_class: Counter[AnyKind] = field(default_factory=Counter)
    left_alone_by_agent: Counter[str] = field(default_factory=Counter)
    not_planned: int = 0
    """Rollouts in the output that the plan does not have."""

    @property
    def to_run(self) -> int:
        return self.by_agent.total()

    def count(self) -> None:
        """Fill in the counts from the materialized file; only where they are not known from the planning."""
        done_of_plan = 0
        for name, line in _materialized(self.materialized):
            self.planned += 1
            if name in self.done:
                done_of_plan += 1
            elif name in self.left_alone:
                self.left_alone_by_class[self.left_alone[name]] += 1
                self.left_alone_by_agent[agent_of(_row(line, self.materialized))] += 1
            else:
                self.by_agent[agent_of(_row(line, self.materialized))] += 1
        self.not_planned = len(self.done) - done_of_plan

    def rollouts(self) -> Iterator[PlannedRollout]:
        if not self.to_run:
            return
        for name, line in _materialized(self.materialized):
            if name in self.done or name in self.left_alone:
                continue
            row = _row(line, self.materialized)
            attempts = min(self.max_attempts - self.data_attempts.get(name, 0), DATA_ATTEMPTS_A_RUN)
            key, ref, earlier = unpacked(name), row[AGENT_REF_KEY_NAME], self.attempts.get(name, 0)
            yield PlannedRollout(key, agent_of(row), ref, line.rstrip(b"\n"), attempts, earlier)


_KEY_AT_END = re.compile(
    rb',"%s":(\d+),"%s":(\d+)\}\n?\Z' % (TASK_INDEX_KEY_NAME.encode(), ROLLOUT_INDEX_KEY_NAME.encode())
)
_AFRESH = "start afresh, without +resume_from_cache=true, which sets the earlier run aside"
_LONGEST_KEY = 96
"""Bytes within which the key stands at the end of a materialized line."""


def _materialized(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every materialized input with its packed key."""
    with path.open("rb", READ_BYTES) as file:
        for line in file:
            yield materialized_name(line, path), line


def materialized_name(line: bytes, path: Path) -> int:
    """The packed key of a materialized input: at its end, where this program wrote it, else anywhere."""
    found = _KEY_AT_END.search(line[-_LONGEST_KEY:])
    if found is not None:
        task, rollout = found.groups()
        return packed(Key(int(task), int(rollout)))
    key = key_of(_row(line, path))
    if key is None:
        raise JournalError(f"{path}: a line has no key: {line[:80]!r}; {_AFRESH}")
    return packed(key)


def _row(line: bytes, path: Path) -> Record:
    try:
        row = parsed(line)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{path}: a line is not JSON ({error}): {line[:80]!r}; {_AFRESH}") from error
    if not isinstance(row, dict) or not agent_of(row):
        raise JournalError(f"{path}: a line names no agent: {line[:80]!r}; {_AFRESH}")
    return row
