"""One try of one rollout: a request to the agent, and what its answer means.

This is the boundary at which whatever goes wrong in a rollout becomes a Failure; only cancellation passes.
"""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import orjson

from nemo_gym.activity import Activity, EndpointLimits, current_activity
from nemo_gym.client import ServerClient
from nemo_gym.codec import decode_json, encode_json
from nemo_gym.config import redact
from nemo_gym.failures import AnyKind, Boundary, FailureKind, declared_kind, kind_of_exception
from nemo_gym.http import ClientResponse, ServerCallError, retry_after_s
from nemo_gym.metrics import numeric_fields
from nemo_gym.records import key_of
from nemo_gym.rollout_collection.outcome import Failure, Outcome, PlannedRollout, Success
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_JUDGE_ERROR_KEY,
    NG_NO_PERSIST_KEY,
    NG_TERMINAL_KEY,
    NON_FINITE_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

_LONGEST_MESSAGE = 2000
_ROUTING_KEYS = (NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, NG_TERMINAL_KEY)


@dataclass(frozen=True)
class Attempt:
    """How rollouts are tried."""

    client: ServerClient
    call_timeout_s: float
    rollout_timeout_s: float
    limits: EndpointLimits | None = None
    """Where concurrency adapts."""
    secrets: Collection[str] = ()
    """Texts that must not stand in a failure."""

    def activity(self, planned: PlannedRollout, attempt: int) -> Activity:
        ends = time.monotonic() + self.rollout_timeout_s
        return Activity(str(planned.key), self.call_timeout_s, self.limits, attempt, ends)

    async def __call__(self, planned: PlannedRollout, activity: Activity) -> Outcome:
        current_activity.set(activity)  # each try has a context of its own
        try:
            response = await self.client.post(planned.agent, "/run", json=orjson.Fragment(planned.line))
            if not response.ok:
                return self._refused(planned, response)
            return await self._outcome(planned, response)
        except Exception as error:  # the boundary of a rollout: every failure is an outcome
            kind = kind_of_exception(error, Boundary.CALL)
            return self._failure(planned, kind, type(error).__name__, str(error) or repr(error))

    def _refused(self, planned: PlannedRollout, response: ClientResponse) -> Failure:
        error = ServerCallError(response)
        details = {"status": error.origin_status, "retry_after_s": retry_after_s(response)}
        return self._failure(planned, error.kind, type(error).__name__, str(error), **details)

    async def _outcome(self, planned: PlannedRollout, response: ClientResponse) -> Outcome:
        """What the agent's answer makes of the rollout."""
        body = await response.read()
        line: bytes | None = body
        try:
            rollout = orjson.loads(body)
        except orjson.JSONDecodeError:
            line = None
            try:
                rollout = decode_json(body)  # NaN and the like, which strict readers refuse
            except (ValueError, RecursionError) as error:
                return self._invalid(planned, f"the agent's answer is not JSON ({error}): {body[:200]!r}")
        if not isinstance(rollout, dict):
            return self._invalid(planned, f"the agent's answer is not a JSON object: {body[:200]!r}")
        if any(rollout.get(key) for key in _ROUTING_KEYS):
            return self._routed(planned, rollout)
        reward = rollout.get("reward")
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            return self._invalid(planned, f"the rollout has no numeric reward: reward is {reward!r}")
        odd: list[str] = []
        numbers = numeric_fields(rollout, odd)
        if odd:
            rollout[NON_FINITE_KEY_NAME] = odd
        return Success(planned.key, planned.agent, self._line(planned, rollout, line), numbers, tuple(odd))

    def _line(self, planned: PlannedRollout, rollout: dict[str, Any], line: bytes | None) -> bytes:
        """The answer as it came, if it is strict JSON and carries the row's key; else with the key put in."""
        key = planned.key
        if (
            line is not None
            and key_of(rollout) == key
            and rollout.get(AGENT_REF_KEY_NAME) == planned.agent_ref
            and b"\n" not in line
            and b"\r" not in line  # which ends a line for some readers
        ):
            return line
        if line is not None:
            rollout = decode_json(line)  # keeps whole numbers of any size
        rollout[TASK_INDEX_KEY_NAME] = key.task
        rollout[ROLLOUT_INDEX_KEY_NAME] = key.rollout
        rollout[AGENT_REF_KEY_NAME] = planned.agent_ref
        return encode_json(rollout)

    def _routed(self, planned: PlannedRollout, rollout: dict[str, Any]) -> Failure:
        """A failure that the agent or the verifier decided on."""
        kind = declared_kind(rollout.get(NG_FAILURE_CLASS_KEY))
        message = rollout.get(NG_JUDGE_ERROR_KEY) or f"the agent declared this rollout failed: {kind}"
        return self._failure(
            planned,
            kind,
            "AgentFailure",
            str(message),
            is_terminal=bool(rollout.get(NG_TERMINAL_KEY)),
            is_kept=not rollout.get(NG_NO_PERSIST_KEY),
        )

    def _invalid(self, planned: PlannedRollout, message: str) -> Failure:
        return self._failure(planned, FailureKind.DATA, "InvalidRollout", message)

    def _failure(
        self, planned: PlannedRollout, failure_class: AnyKind, error_type: str, message: str, **details: Any
    ) -> Failure:
        message = redact(message, self.secrets)[:_LONGEST_MESSAGE]
        return Failure(planned.key, planned.agent_ref, failure_class, error_type, message, **details)
