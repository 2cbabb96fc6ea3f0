"""One play of a row: a request to the agent's `/run`, whose response is a rollout or an error.

The collector, `run_examples` and `nemo_rl` all play rows with this function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from nemo_gym.client import ServerClient
from nemo_gym.codec import decode_json
from nemo_gym.errors import NeMoGymError
from nemo_gym.failures import AnyKind, Boundary, declared_kind, kind_of_exception
from nemo_gym.http import ResponseTooLargeError, ServerCallError, ServerUnreachableError
from nemo_gym.types import (
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_COUNT_KEY,
    NG_JUDGE_ERROR_KEY,
    NG_NO_PERSIST_KEY,
    NG_TERMINAL_KEY,
)

_DECLARING_KEYS = (NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, NG_TERMINAL_KEY)


class InvalidRollout(NeMoGymError):
    """The agent's response is not a rollout."""


class UnreadableRollout(InvalidRollout):
    """The agent's response is not JSON: it was cut off, or it is a page of a gateway."""


class NotAnObject(InvalidRollout):
    """The agent's response is JSON, but not an object."""

    def __init__(self, message: str, value: Any) -> None:
        super().__init__(message)
        self.value = value


class AgentFailure(NeMoGymError):
    """The agent or its verifier declared the rollout failed: it has no meaningful reward."""

    def __init__(self, agent: str, rollout: dict[str, Any]) -> None:
        self.kind: AnyKind = declared_kind(rollout.get(NG_FAILURE_CLASS_KEY))
        self.is_terminal = bool(rollout.get(NG_TERMINAL_KEY))
        self.is_kept = not rollout.get(NG_NO_PERSIST_KEY)
        count = rollout.get(NG_FAILURE_COUNT_KEY)
        self.failure_count = count if isinstance(count, int) else 1
        reason = rollout.get(NG_JUDGE_ERROR_KEY) or "no reason given"
        super().__init__(f"{agent} declared this rollout failed ({self.kind}): {reason}")


PLAY_ERRORS = (ServerCallError, ServerUnreachableError, ResponseTooLargeError, InvalidRollout, AgentFailure)
"""What `play` raises, apart from bugs and what the servers raise in this process."""


def kind_of_play_error(error: Exception, boundary: Boundary) -> AnyKind:
    """The kind that the agent declared, else that of the table of failures."""
    return error.kind if isinstance(error, AgentFailure) else kind_of_exception(error, boundary)


@dataclass(frozen=True, slots=True)
class Played:
    """The rollout that an agent returned for a row."""

    rollout: dict[str, Any]
    strict_json: bytes | None = None
    """The body of the response if it is strict JSON, which every parser can read."""


def read_exactly(body: bytes) -> Played:
    """Parse a rollout; integers of any size stay exact."""
    return Played(decode_json(body))


def read_fast(body: bytes) -> Played:
    """Parse a rollout faster; integers beyond 64 bits become floats."""
    try:
        return Played(orjson.loads(body), body)
    except orjson.JSONDecodeError:
        return Played(decode_json(body))  # NaN or infinity, which orjson refuses


async def play(
    client: ServerClient,
    agent: str,
    row: Any,
    timeout_s: float | None = None,
    read: Callable[[bytes], Played] = read_exactly,
) -> Played:
    """Have an agent play a row; raises one of PLAY_ERRORS if there is no rollout."""
    response = await client.post(agent, "/run", json=row, timeout=timeout_s)
    response.raise_for_status()
    body = await response.read()
    try:
        played = read(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableRollout(f"the response of {agent} is not JSON ({error}): {body[:200]!r}") from error
    rollout = played.rollout
    if not isinstance(rollout, dict):
        text = body[:200].decode(errors="replace")
        hint = "`verify` has to return one with a reward"
        raise NotAnObject(f"the response of {agent} is not a JSON object: {text}; {hint}", rollout)
    if any(rollout.get(key) for key in _DECLARING_KEYS):
        raise AgentFailure(agent, rollout)
    return played
