"""The lines of a file whose tokens are checked: rollouts of ours, or of tools that give them no key.

Invariant: a line needs nothing but what is checked. A key, where there is one, still stands there once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nemo_gym.errors import InputError
from nemo_gym.journal import Line
from nemo_gym.records import (
    SKIP_HINT,
    BadLines,
    Record,
    RolloutLine,
    agent_of,
    key_of,
    read_records,
    refuse_repeated,
)
from nemo_gym.types import RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME


class TokenLine(NamedTuple):
    """One rollout of a file."""

    number: int
    """From 1: of its line."""
    key: str | None
    """`task:rollout`; None where it has none, and its line is its only name."""
    record: Record


def read_token_lines(path: Path, bad_lines: BadLines) -> Iterator[TokenLine]:
    """Every rollout of a file; one whose key stood there before is a bad line."""
    first_lines: dict[int, int] = {}
    for line, record in read_records(path, bad_lines):
        try:
            rollout = _checked(path, line, record, first_lines)
        except InputError as error:
            bad_lines.take(error)
        else:
            yield rollout


def _checked(path: Path, line: Line, record: Record, first_lines: dict[int, int]) -> TokenLine:
    key = key_of(record)
    if key is not None:
        refuse_repeated(path, RolloutLine(line, record, key, agent_of(record)), first_lines)
    elif RESPONSE_KEY_NAME not in record:  # such as the tasks that rollouts are made of
        raise InputError(
            f"{path}:{line.number}: no rollout: it has neither {RESPONSE_KEY_NAME} nor {TASK_INDEX_KEY_NAME} "
            f"and {ROLLOUT_INDEX_KEY_NAME}; name a file of rollouts, {SKIP_HINT}"
        )
    return TokenLine(line.number, None if key is None else str(key), record)
