"""What an earlier run recorded, read back: its output repaired, its failures counted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.failures import AnyKind, declared_kind, rule_of
from nemo_gym.journal import Recovery, recover
from nemo_gym.records import Key, Record, key_of, packed, parsed
from nemo_gym.types import (
    NG_FAILURE_CLASS_KEY,
    NG_TERMINAL_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)


def mend_output(path: Path) -> Recovery:
    """Leave of an output the lines that are whole, each key once."""
    done: set[int] = set()

    def take(key: Key, _: Record) -> str | None:
        if packed(key) in done:
            return f"repeats rollout {key}"
        done.add(packed(key))
        return None

    return _mend_keyed(path, take)


def _mend_keyed(path: Path, take: Callable[[Key, Record], str | None]) -> Recovery:
    """Mend a file whose every line is an object with a key; `take` may refuse one with a reason."""

    def judge(line: bytes) -> str | None:
        try:
            record = parsed(line)
        except (ValueError, RecursionError):
            return "is torn"
        key = key_of(record) if isinstance(record, dict) else None
        if key is None:
            return f"has no {TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME}"
        return take(key, record)

    return recover(path, judge)


@dataclass
class PastFailures:
    """What the failures file says of each key, over all runs."""

    data_attempts: dict[int, int] = field(default_factory=dict)
    terminal: dict[int, AnyKind] = field(default_factory=dict)
    """The failure class of those that are never to be tried again."""
    last_class: dict[int, AnyKind] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    """Tries of any kind."""

    def take(self, key: Key, record: Record) -> None:
        name, kind = packed(key), declared_kind(record.get(NG_FAILURE_CLASS_KEY))
        rule = rule_of(kind)
        if rule.counts_as_attempt:
            self.attempts[name] = self.attempts.get(name, 0) + _count(record.get("attempts"))
        if record.get(NG_TERMINAL_KEY):
            self.terminal[name] = kind
        if rule.uses_data_attempts:
            self.data_attempts[name] = self.data_attempts.get(name, 0) + _count(record.get("data_attempts"))
            self.last_class[name] = kind

    def left_alone(self, max_attempts: int) -> dict[int, AnyKind]:
        """The keys that are not tried again, with the class of their failure."""
        spent = {
            name: self.last_class[name]
            for name, attempts in self.data_attempts.items()
            if attempts >= max_attempts
        }
        return spent | self.terminal


def _count(attempts: Any) -> int:
    return attempts if isinstance(attempts, int) and attempts > 0 else 1


def read_failures(path: Path) -> tuple[PastFailures, Recovery]:
    past = PastFailures()

    if not path.exists():
        return past, Recovery()
    return past, _mend_keyed(path, past.take)


def forget_failures(path: Path, names: set[int]) -> Recovery:
    """Set aside what failed with inputs that are no more."""
    if not path.exists() or not names:
        return Recovery()
    return _mend_keyed(
        path, lambda key, _: "is of an input that has changed" if packed(key) in names else None
    )
