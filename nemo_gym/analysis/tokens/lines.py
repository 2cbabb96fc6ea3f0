"""The lines of a file whose tokens are checked: rollouts with a key, or of tools that write no key.

Invariant: a line needs only the fields that are checked. A key that is there must be unique.
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
    """Line number, from 1."""
    key: str | None
    """`task:rollout`; None if the rollout has no key."""
    record: Record


def read_token_lines(path: Path, bad_lines: BadLines) -> Iterator[TokenLine]:
    """Every rollout of a file. A line that repeats a key is a bad line."""
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
    elif RESPONSE_KEY_NAME not in record:  # for example an input row
        raise InputError(
            f"{path}:{line.number}: not a rollout: it has neither {RESPONSE_KEY_NAME} nor "
            f"{TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME}; give a rollouts file, {SKIP_HINT}"
        )
    return TokenLine(line.number, None if key is None else str(key), record)
