"""The nouns of a collection: the task that goes in, the outcome that comes back."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.failures import AnyKind
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
class Task:
    """One rollout to be played."""

    key: Key
    agent: str
    agent_ref: Mapping[str, Any]
    line: bytes
    """The materialized input: the body of the request to the agent."""
    data_attempts_left: int = 2
    """How often it may still fail through its own fault."""
    earlier_attempts: int = 0
    """Tries in earlier runs, all of which failed."""


@dataclass(frozen=True, slots=True)
class Success:
    """A rollout that was scored."""

    key: Key
    agent: str
    line: bytes
    """The rollout as it is written."""
    numbers: Mapping[str, float]
    """Its numeric fields."""
    odd: tuple[str, ...] = ()
    """The names of those that are NaN or infinite."""
    attempts: int = 1
    """Tries in this run."""
    is_retried: bool = False
    """Whether it took more than one try, in this run or over all."""

    def after(self, attempts: int, earlier: int) -> "Success":
        """The same as the last of several tries; the line says which it was, from 0."""
        record = decode_json(self.line)
        record[ATTEMPT_INDEX_KEY_NAME] = attempts + earlier - 1
        return replace(self, line=encode_json(record), attempts=attempts, is_retried=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """A rollout that failed in the end, or one try of it."""

    key: Key
    agent_ref: Mapping[str, Any]
    failure_class: AnyKind
    error_type: str
    message: str
    status: int | None = None
    """The HTTP status, where there is one."""
    retry_after_s: float | None = None
    attempts: int = 1
    data_attempts: int = 0
    """Tries that failed through the task's own fault."""
    is_terminal: bool = False
    """Never to be tried again."""
    is_kept: bool = True
    """Whether it goes to the failures file; if not, it is as if it had not been run."""
    time: float = field(default_factory=time.time)

    @property
    def agent(self) -> str:
        return str(self.agent_ref.get("name", ""))

    def line(self) -> bytes:
        """The failure as it is written."""
        record = {
            TASK_INDEX_KEY_NAME: self.key.task,
            ROLLOUT_INDEX_KEY_NAME: self.key.rollout,
            AGENT_REF_KEY_NAME: dict(self.agent_ref),
            NG_FAILURE_CLASS_KEY: self.failure_class,
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
