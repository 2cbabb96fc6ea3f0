"""Planned rollouts and outcomes: the input and the output of an executor."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.failures import AnyKind, rule_of
from nemo_gym.records import Key
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_TERMINAL_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)


@dataclass(frozen=True, slots=True)
class PlannedRollout:
    """One rollout to play: what executors hand out."""

    key: Key
    agent: str
    agent_ref: Mapping[str, Any]
    line: bytes
    """The materialized input, which is the body of the request to the agent."""
    data_attempts_left: int = 2
    """Attempts that may still fail because of the input."""
    earlier_attempts: int = 0
    """Attempts in earlier runs, all of which failed."""
    worker_deaths: int = 0
    """Workers that died in earlier runs while they played it."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numeric top-level fields of the row."""


@dataclass(frozen=True, slots=True)
class Success:
    """A rollout with a reward."""

    key: Key
    agent: str
    line: bytes
    """The record, as it is written."""
    numbers: Mapping[str, float]
    """Its numeric fields."""
    odd: tuple[str, ...] = ()
    """The names of the fields that are NaN or infinite."""
    tool_use: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the record that say how the agent used its tools."""
    attempts: int = 1
    """Attempts in this run."""
    copied: tuple[str, ...] = ()
    """The names of the numeric fields that have the value of the row."""
    is_retried: bool = False
    """Whether it took more than one attempt, across all runs."""

    def after(self, attempts: int, earlier: int) -> "Success":
        """The same, as the last of several attempts; the record gets the number of the attempt, from 0."""
        record = decode_json(self.line)
        record[ATTEMPT_INDEX_KEY_NAME] = attempts + earlier - 1
        return replace(self, line=encode_json(record), attempts=attempts, is_retried=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """A rollout, or one attempt of it, that ended without a reward."""

    key: Key
    agent_ref: Mapping[str, Any]
    kind: AnyKind
    error_type: str
    message: str
    status: int | None = None
    """The HTTP status, if there was a response."""
    retry_after_s: float | None = None
    attempts: int = 1
    data_attempts: int = 0
    """Attempts that failed because of the input."""
    count: int = 1
    """How many of the failures that a rollout may have (`max_attempts`) it counts as: a call may have failed
    several times."""
    is_terminal: bool = False
    """Whether it is never attempted again."""
    is_kept: bool = True
    """Whether it goes to the failures file; if not, the rollout counts as not run."""
    time: float = field(default_factory=time.time)

    @property
    def agent(self) -> str:
        return str(self.agent_ref.get("name", ""))

    @property
    def is_failed(self) -> bool:
        """Whether it counts as failed; otherwise it counts as not run."""
        return self.is_kept and rule_of(self.kind).counts_as_attempt

    def line(self) -> bytes:
        """The record, as it is written."""
        record = {
            TASK_INDEX_KEY_NAME: self.key.task,
            ROLLOUT_INDEX_KEY_NAME: self.key.rollout,
            AGENT_REF_KEY_NAME: dict(self.agent_ref),
            NG_FAILURE_CLASS_KEY: self.kind,
            "error_type": self.error_type,
            "error_message": self.message,
            "http_status": self.status,
            "attempts": self.attempts,
            "data_attempts": self.data_attempts,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.time)),
        }
        if self.status is None:
            del record["http_status"]
        if self.is_terminal:
            record[NG_TERMINAL_KEY] = True
        return encode_json(record)


Outcome = Success | Failure
