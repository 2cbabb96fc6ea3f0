"""Dispatch: attempts of rollouts, each with a deadline, and retries where they may help.

Exactly one outcome is recorded for every rollout that is submitted, whatever its code does: an attempt that
does not end after its cancellation is abandoned.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from nemo_gym.activity import Activity, EndpointLimits
from nemo_gym.endpoint_health import RunEndpoints
from nemo_gym.failures import Boundary, FailureKind, kind_of_exception, rule_of
from nemo_gym.http import RetryPolicy
from nemo_gym.rollout_collection.execution.executor import SHOWN_OLDEST, ExecutorState
from nemo_gym.rollout_collection.outcome import Failure, Outcome, PlannedRollout, Success

_TICK_S = 0.001
"""The precision of an event loop's clock."""

_LEAST_WAIT_S = 0.1
"""Shortest delay after a refusal: there is no limit on their number."""

RunAttempt = Callable[[PlannedRollout, Activity], Coroutine[Any, Any, Outcome]]


@dataclass(frozen=True)
class RolloutPolicy:
    """How long an attempt may take and when a rollout is attempted again."""

    rollout_timeout_s: float
    """Timeout of one attempt, verification and clean-up included."""
    retry: RetryPolicy
    """`max_tries` is the number of failures after which a rollout has failed. After a failure because of the
    input, the rollout limits the retries."""
    teardown_s: float = 5.0
    """Time for a cancelled attempt to end; then it is abandoned."""

    def retry_delay_s(self, failure: Failure, rollout: PlannedRollout, failures: int) -> float | None:
        """Time until the next attempt of a rollout that has had this many failures; None if there is none."""
        rule = rule_of(failure.kind)
        if not rule.is_retried or failure.is_terminal or not failure.is_kept:
            return None
        if rule.uses_data_attempts and failure.data_attempts >= rollout.data_attempts_left:
            return None
        if failures >= self.retry.max_tries:
            return None
        delay = self.retry.delay_s(failures, failure.retry_after_s)
        return delay if delay < self.retry.total_s else None


@dataclass(slots=True, eq=False)
class InFlight:
    """A rollout between its submission and its outcome."""

    rollout: PlannedRollout
    started: float
    activity: Activity
    began: float = 0.0
    """When the attempt began, on the clock of the event loop."""
    attempts: int = 0
    """Attempts that count, the running one included."""
    data_attempts: int = 0
    failures: int = 0
    """Of those that it may have (`max_attempts`)."""
    last: Failure | None = None
    """How the previous attempt ended, if it counts."""
    refusals: int = 0
    """Attempts in a row that an endpoint refused; they do not count."""
    refused_since: float = 0.0
    """When the first of these was refused."""
    refused_at: float | None = None
    """When the previous attempt was refused."""
    is_cause: bool = False
    """Whether it was refused while others of its agent succeeded: the rollout itself is the cause."""
    running: "asyncio.Task[Outcome] | None" = None
    """The attempt; None between two attempts."""
    timer: asyncio.TimerHandle | None = None
    """The deadline of the attempt, or the start of the next one."""
    cut: Failure | None = None
    """Why the attempt was cancelled, and what it was doing then."""


class Dispatcher:
    """Starts each submitted rollout at once; `record` gets each outcome."""

    def __init__(
        self,
        attempt: RunAttempt,
        new_activity: Callable[[PlannedRollout, int], Activity],
        policy: RolloutPolicy,
        record: Callable[[Outcome], None],
    ) -> None:
        self._attempt = attempt
        self._new_activity = new_activity
        self._policy = policy
        self._record = record
        self._loop = asyncio.get_running_loop()
        self.in_flight: dict[InFlight, None] = {}
        """In the order of their start."""
        self.retries = 0
        self.refusal = ""
        """The newest error of a rollout that was refused."""
        self._succeeded_at: dict[str, float] = {}
        """When a rollout of each agent has succeeded last."""
        self._is_stopping = False
        self.changed = asyncio.Event()
        """Set whenever an outcome is recorded."""

    def submit(self, rollout: PlannedRollout) -> None:
        entry = InFlight(rollout, time.monotonic(), self._new_activity(rollout, 1))
        self.in_flight[entry] = None
        self._start(entry)

    async def drain(self, grace_s: float) -> None:
        """Start nothing more; wait for running attempts for the grace period, then cancel them."""
        self._start_no_more()
        await self._until_empty(grace_s)
        for entry in list(self.in_flight):
            self._cancel(entry)
        await self._until_empty(self._policy.teardown_s + 1)

    def abandon_all(self) -> None:
        """Record an outcome for everything now; running attempts are cancelled and not waited for."""
        self._start_no_more()
        for entry in list(self.in_flight):
            self._cancel(entry)
            self._finish_cut(entry)

    def state(self, limits: EndpointLimits | None, endpoints: RunEndpoints | None = None) -> ExecutorState:
        """What its rollouts are doing, with the endpoints that they call and the limits of these."""
        now = time.monotonic()
        refused = [entry.refused_since for entry in self.in_flight if entry.refusals]
        return ExecutorState(
            len(self.in_flight),
            self.retries,
            oldest=[_described(entry, now) for entry in islice(self.in_flight, SHOWN_OLDEST)],
            limits=limits.current() if limits is not None else {},
            endpoints=endpoints.reports() if endpoints is not None else [],
            refused=len(refused),
            refusal=self.refusal if refused else "",
            refused_s=self._loop.time() - min(refused) if refused else 0.0,
        )

    def take_waits(self, waits: Mapping[str, float]) -> None:
        """How long calls of its attempts have waited for endpoints in other processes, by their key."""
        for entry in self.in_flight:
            activity = entry.activity
            if waits or activity.waited_elsewhere_s:
                activity.waited_elsewhere_s = waits.get(activity.key, 0.0)

    def _start_no_more(self) -> None:
        """Start no further attempts; rollouts that wait for one end with their last failure."""
        self._is_stopping = True
        for entry in [entry for entry in self.in_flight if entry.running is None]:
            self._finish(entry, entry.last or self._cancelled(entry))

    async def _until_empty(self, timeout_s: float) -> None:
        deadline = self._loop.time() + timeout_s
        while self.in_flight and (left := deadline - self._loop.time()) > 0:
            self.changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self.changed.wait()
            except TimeoutError:
                return

    def _start(self, entry: InFlight) -> None:
        entry.attempts += 1
        entry.cut = None
        if entry.timer is not None:  # not the first attempt
            self.retries += entry.refusals == 0
            entry.activity = self._new_activity(entry.rollout, entry.attempts)
        entry.activity.failures_left = max(1, self._policy.retry.max_tries - entry.failures)
        entry.began = self._loop.time()
        entry.running = self._loop.create_task(self._attempt(entry.rollout, entry.activity))
        entry.running.add_done_callback(partial(self._ended, entry))
        entry.timer = self._loop.call_later(self._policy.rollout_timeout_s, self._time_out, entry)

    def _time_out(self, entry: InFlight) -> None:
        doing, limit_s = entry.activity.waits_for(), self._policy.rollout_timeout_s
        left_s = entry.began + limit_s + entry.activity.waited_s() - self._loop.time()
        if left_s > _TICK_S:  # it has waited for an endpoint, which does not count
            entry.timer = self._loop.call_later(left_s, self._time_out, entry)
            return
        message = f"not finished after {limit_s:g} s; last activity: {doing}"
        cut = _failure(entry.rollout, FailureKind.TIMEOUT, "TimeoutError", message)
        self._cut(entry, replace(cut, count=max(1, entry.activity.charged)))

    def _cancel(self, entry: InFlight) -> None:
        self._cut(entry, self._cancelled(entry))

    @staticmethod
    def _cancelled(entry: InFlight) -> Failure:
        message = f"the run was stopped; last activity: {entry.activity.waits_for()}"
        return _failure(entry.rollout, FailureKind.CANCELLED, "CancelledError", message)

    def _cut(self, entry: InFlight, cut: Failure) -> None:
        """Cancel an attempt, which then has some time to clean up."""
        if entry.running is None or entry.cut is not None:
            return
        entry.cut = cut
        if entry.timer is not None:
            entry.timer.cancel()
        entry.running.cancel()
        entry.timer = self._loop.call_later(self._policy.teardown_s, self._abandon, entry)

    def _abandon(self, entry: InFlight) -> None:
        """Finish an attempt that does not end although it was cancelled."""
        if entry.running is not None:
            entry.running.cancel()  # its clean-up has had its time, too
            self._finish_cut(entry)

    def _finish_cut(self, entry: InFlight) -> None:
        assert entry.cut is not None
        entry.running = None
        self._end_attempt(entry, entry.cut)

    def _ended(self, entry: InFlight, running: "asyncio.Task[Outcome]") -> None:
        if entry.running is not running:  # abandoned: its outcome is recorded already
            if not running.cancelled():
                running.exception()  # else asyncio logs that the exception was never retrieved
            return
        entry.running = None
        outcome = _outcome_of(entry.rollout, running)
        if entry.cut is not None and isinstance(outcome, Failure):
            outcome = entry.cut  # the cancellation is the cause of whatever it raised
        self._end_attempt(entry, outcome)

    def _end_attempt(self, entry: InFlight, outcome: Outcome) -> None:
        """An attempt has ended: record the outcome, or schedule the next attempt."""
        if entry.timer is not None:
            entry.timer.cancel()
        if isinstance(outcome, Success):
            self._succeeded_at[outcome.agent] = self._loop.time()
            if entry.attempts + entry.rollout.earlier_attempts > 1:
                outcome = outcome.after(entry.attempts, entry.rollout.earlier_attempts)
            self._finish(entry, outcome)
            return
        if rule_of(outcome.kind).blames_endpoint and outcome.is_kept and not outcome.is_terminal:
            # More than one failure: other tries of the call were charged before it was refused.
            is_spent = outcome.count > 1 and outcome.count >= self._policy.retry.max_tries
            if not self._is_cause(entry) and not is_spent:
                self._wait_for_endpoint(entry, outcome)
                return
            outcome = replace(outcome, kind=FailureKind.DATA)
        entry.refusals = 0
        entry.data_attempts += rule_of(outcome.kind).uses_data_attempts
        entry.failures += outcome.count
        failure = replace(outcome, attempts=entry.attempts, data_attempts=entry.data_attempts)
        delay_s = None
        if not self._is_stopping:
            delay_s = self._policy.retry_delay_s(failure, entry.rollout, entry.failures)
        if delay_s is None:
            self._finish(entry, failure)
        else:
            entry.last = failure
            self._start_after(entry, delay_s, failure)

    def _is_cause(self, entry: InFlight) -> bool:
        """Whether a rollout that an endpoint refused is the cause itself, because others were not refused."""
        succeeded_at = self._succeeded_at.get(entry.rollout.agent)
        if succeeded_at is not None and entry.refused_at is not None and succeeded_at > entry.refused_at:
            entry.is_cause = True
        return entry.is_cause

    def _wait_for_endpoint(self, entry: InFlight, refused: Failure) -> None:
        """The attempt does not count. The driver ends the run if the endpoint refuses every call."""
        if self._is_stopping:
            self._finish(entry, self._cancelled(entry))
            return
        entry.attempts -= 1
        entry.refusals += 1
        entry.refused_at = self._loop.time()
        if entry.refusals == 1:
            entry.refused_since = entry.refused_at
        self.refusal = refused.message
        delay_s = self._policy.retry.delay_s(entry.refusals, refused.retry_after_s)
        self._start_after(entry, max(delay_s, _LEAST_WAIT_S), refused)

    def _start_after(self, entry: InFlight, delay_s: float, failure: Failure) -> None:
        entry.activity.wait_for_retry(failure.status or failure.kind)
        entry.timer = self._loop.call_later(delay_s, self._start, entry)

    def _finish(self, entry: InFlight, outcome: Outcome) -> None:
        if entry not in self.in_flight:
            return  # recording another outcome may have ended the run, and this rollout with it
        del self.in_flight[entry]
        if entry.timer is not None:
            entry.timer.cancel()
        self.changed.set()
        self._record(outcome)


def _outcome_of(rollout: PlannedRollout, running: "asyncio.Task[Outcome]") -> Outcome:
    """The outcome of an attempt that has ended; an attempt raises nothing but cancellation."""
    error: BaseException | None
    if running.cancelled() and running.cancelling():
        message = "the code of an environment cancelled tasks of this process"
        kind = FailureKind.INFRASTRUCTURE  # perhaps the code of another rollout
        return Failure(rollout.key, rollout.agent_ref, kind, "CancelledError", message)
    if running.cancelled():
        error = asyncio.CancelledError("the rollout's own code raised CancelledError")
    else:
        error = running.exception()
    if error is None:
        return running.result()
    kind = kind_of_exception(error, Boundary.SERVER_CODE)
    return _failure(rollout, kind, type(error).__name__, str(error) or repr(error))


def _failure(rollout: PlannedRollout, kind: FailureKind, error_type: str, message: str) -> Failure:
    return Failure(rollout.key, rollout.agent_ref, kind, error_type, message)


def _described(entry: InFlight, now: float) -> dict[str, object]:
    """A rollout in flight and what it waits for."""
    return {
        "rollout": str(entry.rollout.key),
        "agent": entry.rollout.agent,
        "seconds": round(now - entry.started, 1),
        "waits_for": entry.activity.waits_for(),
    }
