"""One attempt of one rollout: a play by the agent, turned into an outcome.

This is the boundary at which every error of a rollout becomes a Failure; only cancellation passes.
"""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import orjson

from nemo_gym.activity import Activity, EndpointLimits, current_activity
from nemo_gym.client import ServerClient
from nemo_gym.codec import decode_json, encode_json
from nemo_gym.config import redact, secret_values
from nemo_gym.endpoint_health import RunEndpoints
from nemo_gym.failures import Boundary
from nemo_gym.http import ClientResponse, ServerCallError, ServerUnreachableError, retry_after_s
from nemo_gym.metrics import numeric_fields, tool_use_fields
from nemo_gym.records import key_of
from nemo_gym.rollout_collection.execution.play import (
    AgentFailure,
    InvalidRollout,
    Played,
    kind_of_play_error,
    play,
    read_fast,
)
from nemo_gym.rollout_collection.outcome import Failure, Outcome, PlannedRollout, Success
from nemo_gym.servers.rollout_record import lost_fields
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    NON_FINITE_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

_LONGEST_MESSAGE = 2000


@dataclass(frozen=True)
class Attempt:
    """How rollouts are attempted."""

    client: ServerClient
    call_timeout_s: float
    rollout_timeout_s: float
    limits: EndpointLimits | None = None
    """Set if concurrency is adaptive."""
    secrets: Collection[str] = ()
    """Texts that must not appear in a failure."""
    endpoints: RunEndpoints = field(default_factory=lambda: RunEndpoints(uuid4().hex))
    backoff_s: float = 0.5
    """Delay after the first failure of a rollout."""

    def activity(self, planned: PlannedRollout, attempt: int) -> Activity:
        ends = time.monotonic() + self.rollout_timeout_s
        return Activity(
            str(planned.key),
            self.call_timeout_s,
            self.limits,
            attempt,
            ends,
            self.endpoints,
            backoff_s=self.backoff_s,
        )

    async def __call__(self, planned: PlannedRollout, activity: Activity) -> Outcome:
        current_activity.set(activity)  # each attempt has a context of its own
        try:
            row = orjson.Fragment(planned.line)
            return _success(planned, await play(self.client, planned.agent, row, read=read_fast))
        except Exception as error:  # the boundary of a rollout: every error is an outcome
            return self._failure(planned, error)

    def _failure(self, planned: PlannedRollout, error: Exception) -> Failure:
        kind = kind_of_play_error(error, Boundary.CALL)
        details: dict[str, Any] = {}
        if isinstance(error, AgentFailure):
            details = {
                "is_terminal": error.is_terminal,
                "is_kept": error.is_kept,
                "count": error.failure_count,
            }
        elif isinstance(error, ServerCallError):
            details = {
                "status": error.origin_status,
                "retry_after_s": _requested_delay_s(error),
                "count": error.failure_count,
            }
        elif isinstance(error, ServerUnreachableError):
            details = {"count": error.failure_count}
        secrets = {*self.secrets, *secret_values(decode_json(planned.line))}
        message = redact(str(error) or repr(error), secrets)[:_LONGEST_MESSAGE]
        error_type = InvalidRollout if isinstance(error, InvalidRollout) else type(error)
        return Failure(planned.key, planned.agent_ref, kind, error_type.__name__, message, **details)


def _success(planned: PlannedRollout, played: Played) -> Success:
    rollout = played.rollout
    reward = rollout.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        odd_fields = rollout.get(NON_FINITE_KEY_NAME) or ()  # null in JSON
        shown = "NaN or infinite" if reward is None and "reward" in odd_fields else repr(reward)
        raise InvalidRollout(f"the rollout has no numeric reward: reward is {shown}")
    odd: list[str] = []
    numbers = numeric_fields(rollout, odd)
    if odd:
        rollout[NON_FINITE_KEY_NAME] = odd
    copied = tuple(name for name, value in planned.numbers.items() if numbers.get(name) == value)
    line = _record_line(planned, played)
    odd_names, tools = tuple(odd), tool_use_fields(rollout)
    return Success(planned.key, planned.agent, line, numbers, odd_names, copied=copied, tool_use=tools)


def _record_line(planned: PlannedRollout, played: Played) -> bytes:
    """The response unchanged if it is strict JSON with the key of the row; otherwise laid over the row."""
    rollout, line, key = played.rollout, played.strict_json, planned.key
    if (
        line is not None
        and key_of(rollout) == key
        and rollout.get(AGENT_REF_KEY_NAME) == planned.agent_ref
        and b"\n" not in line
        and b"\r" not in line  # a line end for some readers
    ):
        return line
    if line is not None:
        rollout = decode_json(line)  # keeps whole numbers of any size
    rollout |= lost_fields(decode_json(planned.line), rollout)
    rollout[TASK_INDEX_KEY_NAME] = key.task
    rollout[ROLLOUT_INDEX_KEY_NAME] = key.rollout
    rollout[AGENT_REF_KEY_NAME] = planned.agent_ref
    return encode_json(rollout)


def _requested_delay_s(error: ServerCallError) -> float | None:
    """The delay that the server asks for before the next request."""
    headers = tuple(error.headers.items()) if error.headers else ()
    return retry_after_s(ClientResponse(error.status, headers, b""))
