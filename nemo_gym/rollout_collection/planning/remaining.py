"""The remaining work: the plan minus the rollouts in the output minus those whose attempts are spent.

This is the only place that computes it. A rollout whose key is in the output is done. One whose failures have
used up its attempts, or are terminal, is skipped. All others remain to be played.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nemo_gym.errors import JournalError
from nemo_gym.failures import AnyKind
from nemo_gym.journal import READ_BYTES
from nemo_gym.metrics.numeric_fields import row_numbers
from nemo_gym.records import Key, Record, agent_of, key_of, packed, parsed, unpacked
from nemo_gym.rollout_collection.outcome import PlannedRollout
from nemo_gym.rollout_collection.recording.recovery import PastFailures
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

DATA_ATTEMPTS_PER_RUN = 2
"""Attempts per run of a rollout that fails because of its input."""


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class RemainingWork:
    """The rollouts of a plan that remain to be played, and why the others do not. It never changes."""

    plan: Path
    """The file of materialized inputs."""
    place: Path
    """The same, in whatever working directory the program is later."""
    max_attempts: int
    """Attempts, across all runs, of a rollout that fails because of its input."""
    planned: int
    to_run_by_agent: Mapping[str, int]
    done: frozenset[int] = frozenset()
    """Packed keys in the output."""
    skipped: Mapping[int, AnyKind] = field(default_factory=_nothing)
    """Packed keys of rollouts that are not attempted again, with the kind of their last failure."""
    data_attempts: Mapping[int, int] = field(default_factory=_nothing)
    """Packed keys with their attempts in earlier runs that failed because of the input."""
    earlier_attempts: Mapping[int, int] = field(default_factory=_nothing)
    """The same for attempts of any kind."""
    worker_deaths: Mapping[int, int] = field(default_factory=_nothing)
    """The same for deaths of workers that played the rollout."""
    skipped_by_kind: Mapping[AnyKind, int] = field(default_factory=_nothing)
    skipped_by_agent: Mapping[str, int] = field(default_factory=_nothing)
    not_planned: int = 0
    """Rollouts in the output that the plan does not have."""

    @property
    def to_run(self) -> int:
        return sum(self.to_run_by_agent.values())

    @property
    def num_skipped(self) -> int:
        return sum(self.skipped_by_kind.values())

    @property
    def num_done(self) -> int:
        """Rollouts of the plan that are in the output."""
        return self.planned - self.to_run - self.num_skipped

    def rollouts(self) -> Iterator[PlannedRollout]:
        """The rollouts to play, read from the plan."""
        if not self.to_run:
            return
        for packed_key, line in read_plan(self.place):
            if packed_key in self.done or packed_key in self.skipped:
                continue
            row = _row(line, self.plan)
            attempts_left = self.max_attempts - self.data_attempts.get(packed_key, 0)
            yield PlannedRollout(
                unpacked(packed_key),
                agent_of(row),
                row[AGENT_REF_KEY_NAME],
                line.rstrip(b"\n"),
                min(attempts_left, DATA_ATTEMPTS_PER_RUN),
                self.earlier_attempts.get(packed_key, 0),
                self.worker_deaths.get(packed_key, 0),
                row_numbers(row),
            )


class WorkCount:
    """Counts the remaining work while a plan is read or made, line by line."""

    def __init__(self, plan: Path, done: Iterable[int], past: PastFailures, max_attempts: int) -> None:
        self._plan = plan
        self._done = frozenset(done)
        self._past = past
        self._max_attempts = max_attempts
        spent = past.spent(max_attempts)
        self._skipped = {key: kind for key, kind in spent.items() if key not in self._done}
        self._planned = self._planned_done = 0
        self._to_run_by_agent = Counter[str]()
        self._skipped_by_kind, self._skipped_by_agent = Counter[AnyKind](), Counter[str]()

    def forget_failures(self, packed_key: int) -> None:
        """Do not skip this rollout: its input has changed since it failed."""
        self._skipped.pop(packed_key, None)

    def take(self, line: bytes) -> None:
        """Count one materialized input."""
        packed_key = packed_key_of(line, self._plan)
        self._planned += 1
        if packed_key in self._done:
            self._planned_done += 1
        elif packed_key in self._skipped:
            self._skipped_by_kind[self._skipped[packed_key]] += 1
            self._skipped_by_agent[agent_of(_row(line, self._plan))] += 1
        else:
            self._to_run_by_agent[agent_of(_row(line, self._plan))] += 1

    def result(self) -> RemainingWork:
        return RemainingWork(
            self._plan,
            self._plan.absolute(),
            self._max_attempts,
            self._planned,
            MappingProxyType(self._to_run_by_agent),
            self._done,
            MappingProxyType(self._skipped),
            MappingProxyType(dict(self._past.data_attempts)),
            MappingProxyType(dict(self._past.attempts)),
            MappingProxyType(dict(self._past.worker_deaths)),
            MappingProxyType(self._skipped_by_kind),
            MappingProxyType(self._skipped_by_agent),
            not_planned=len(self._done) - self._planned_done,
        )


def whole_plan(plan: Path, by_agent: Mapping[str, int], max_attempts: int) -> RemainingWork:
    """The remaining work of a new run: every rollout of the plan."""
    to_run = MappingProxyType(dict(by_agent))
    return RemainingWork(plan, plan.absolute(), max_attempts, sum(to_run.values()), to_run)


def remaining_work(plan: Path, done: Iterable[int], past: PastFailures, max_attempts: int) -> RemainingWork:
    """The remaining work of the plan in a file."""
    count = WorkCount(plan, done, past, max_attempts)
    with plan.open("rb", READ_BYTES) as file:
        for line in file:
            count.take(line)
    return count.result()


_KEY_AT_END = re.compile(
    rb',"%s":(\d+),"%s":(\d+)\}\n?\Z' % (TASK_INDEX_KEY_NAME.encode(), ROLLOUT_INDEX_KEY_NAME.encode())
)
_START_OVER = (
    "to start over, run again without +resume_from_cache=true; the files of the earlier run are then renamed"
)
_LONGEST_KEY = 96
"""Bytes at the end of a materialized input that hold the key."""


def read_plan(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every materialized input with its packed key."""
    with path.open("rb", READ_BYTES) as file:
        for line in file:
            yield packed_key_of(line, path), line


def planned_rows(path: Path) -> Iterator[tuple[int, Record]]:
    """Every materialized input, parsed, with its packed key."""
    for packed_key, line in read_plan(path):
        yield packed_key, _row(line, path)


def packed_key_of(line: bytes, path: Path) -> int:
    """The packed key of a materialized input. This program writes it at the end of the line."""
    found = _KEY_AT_END.search(line[-_LONGEST_KEY:])
    if found is not None:
        task, rollout = found.groups()
        return packed(Key(int(task), int(rollout)))
    key = key_of(_row(line, path))
    if key is None:
        raise JournalError(f"{path}: a line has no key: {line[:80]!r}; {_START_OVER}")
    return packed(key)


def _row(line: bytes, path: Path) -> Record:
    try:
        row = parsed(line)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{path}: a line is not JSON ({error}): {line[:80]!r}; {_START_OVER}") from error
    if not isinstance(row, dict) or not agent_of(row):
        raise JournalError(f"{path}: a line names no agent: {line[:80]!r}; {_START_OVER}")
    return row
