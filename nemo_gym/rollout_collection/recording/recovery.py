"""Reads what an earlier run recorded: repairs its output and counts its failures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.failures import AnyKind, FailureKind, declared_kind, rule_of
from nemo_gym.journal import Recovery, read_lines, recover
from nemo_gym.records import Key, Record, key_of, packed, parsed
from nemo_gym.types import (
    NG_FAILURE_CLASS_KEY,
    NG_TERMINAL_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)


def repair_output(path: Path) -> Recovery:
    """Keep the whole lines of an output, each key once; set all others aside."""
    done: set[int] = set()

    def take(key: Key, _: Record) -> str | None:
        if packed(key) in done:
            return f"repeats rollout {key}"
        done.add(packed(key))
        return None

    return _repair_keyed(path, take)


def _repair_keyed(path: Path, take: Callable[[Key, Record], str | None]) -> Recovery:
    """Repair a file whose every line is an object with a key; `take` may refuse one with a reason."""

    def judge(line: bytes) -> str | None:
        try:
            record = parsed(line)
        except (ValueError, RecursionError):
            return "is incomplete or not JSON"
        key = key_of(record) if isinstance(record, dict) else None
        if key is None:
            return f"has no {TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME}"
        return take(key, record)

    return recover(path, judge)


def read_keyed(path: Path) -> Iterator[tuple[Key, Record]]:
    """The records of a file that a repair would keep. The file may not exist, and stays as it is."""
    if not path.exists():
        return
    for line in read_lines(path):
        try:
            record = parsed(line.data)
        except (ValueError, RecursionError):
            continue
        key = key_of(record) if isinstance(record, dict) else None
        if key is not None:
            yield key, record


@dataclass
class PastFailures:
    """The failures of each packed key in the failures file, across all runs."""

    data_attempts: dict[int, int] = field(default_factory=dict)
    """Attempts that failed because of the input."""
    terminal: dict[int, AnyKind] = field(default_factory=dict)
    """The kind of failures that are never attempted again."""
    last_kind: dict[int, AnyKind] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    """Attempts of any kind."""
    worker_deaths: Mapping[int, int] = field(default_factory=dict)
    """Deaths of workers that played the rollout; the manifest has them, also those without a failure."""

    def take(self, key: Key, record: Record) -> None:
        packed_key, kind = packed(key), declared_kind(record.get(NG_FAILURE_CLASS_KEY))
        rule = rule_of(kind)
        if rule.counts_as_attempt:
            attempts = self.attempts.get(packed_key, 0)
            self.attempts[packed_key] = attempts + _count(record.get("attempts"), least=1)
        if record.get(NG_TERMINAL_KEY):
            self.terminal[packed_key] = kind
        # A rollout that an outage ended may have failed because of its input before, in the same run.
        data_attempts = _count(record.get("data_attempts"), least=int(rule.uses_data_attempts))
        if data_attempts:
            self.data_attempts[packed_key] = self.data_attempts.get(packed_key, 0) + data_attempts
            self.last_kind[packed_key] = kind if rule.uses_data_attempts else FailureKind.DATA

    def spent(self, max_attempts: int) -> dict[int, AnyKind]:
        """The packed keys of rollouts that are not attempted again, with the kind of their failure."""
        used_up = {
            packed_key: self.last_kind[packed_key]
            for packed_key, attempts in self.data_attempts.items()
            if attempts >= max_attempts
        }
        return used_up | self.terminal


def _count(attempts: Any, least: int) -> int:
    return max(least, attempts) if isinstance(attempts, int) else least


def recover_failures(path: Path) -> tuple[PastFailures, Recovery]:
    """The failures of earlier runs; a line that a killed run left torn is set aside."""
    past = PastFailures()
    if not path.exists():
        return past, Recovery()
    return past, _repair_keyed(path, past.take)


def read_failures(path: Path) -> PastFailures:
    """The same without a repair: the file stays as it is."""
    past = PastFailures()
    for key, record in read_keyed(path):
        past.take(key, record)
    return past


def forget_failures(path: Path, packed_keys: set[int]) -> Recovery:
    """Set aside the failures of inputs that have changed."""
    if not path.exists() or not packed_keys:
        return Recovery()
    return _repair_keyed(
        path, lambda key, _: "belongs to an input that has changed" if packed(key) in packed_keys else None
    )
