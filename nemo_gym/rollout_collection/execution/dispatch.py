"""Dispatch: tries of rollouts, each with a deadline, again where that may help.

Every task that is submitted is settled exactly once, with a success or a failure, whatever its code does:
a try that does not end when it is cancelled is left behind after a while.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nemo_gym.activity import Activity
from nemo_gym.failures import FailureKind, rule_of
from nemo_gym.http import RetryPolicy
from nemo_gym.rollout_collection.outcome import Failure, Outcome, Success, Task

TEARDOWN_S = 5.0
"""How long a try may take to end once it is cancelled."""

Try = Callable[[Task, Activity], Coroutine[Any, Any, Outcome]]


@dataclass(frozen=True)
class RolloutPolicy:
    """How long a rollout may take and when it is tried again."""

    rollout_timeout_s: float
    """One try, verification and clean-up included."""
    retry: RetryPolicy
    """After an outage. A failure of the task itself is tried again only as often as the task allows."""

    def wait_s(self, failure: Failure, task: Task, elapsed_s: float) -> float | None:
        """How long to wait before the next try; None: there is none."""
        rule = rule_of(failure.failure_class)
        if not rule.is_retried or failure.is_terminal or not failure.is_kept:
            return None
        if rule.uses_data_attempts and failure.data_attempts >= task.data_attempts_left:
            return None
        if failure.attempts >= self.retry.attempts:
            return None
        delay = self.retry.delay_s(failure.attempts, failure.retry_after_s)
        return delay if elapsed_s + delay < self.retry.total_s else None


@dataclass(slots=True, eq=False)
class InFlight:
    """A task between its submission and its outcome."""

    task: Task
    started: float
    activity: Activity
    attempts: int = 0
    data_attempts: int = 0
    last: Failure | None = None
    """How the try before ended."""
    running: "asyncio.Task[Outcome] | None" = None
    timer: asyncio.TimerHandle | None = None
    """The deadline of the try, or the wait for the next one."""
    cut: Failure | None = None
    """Why the try was cancelled, and what it was doing then."""


class Dispatcher:
    """Runs what is submitted, at once; `settle` gets each outcome."""

    def __init__(
        self,
        attempt: Try,
        new_activity: Callable[[Task, int], Activity],
        policy: RolloutPolicy,
        settle: Callable[[Outcome], None],
    ) -> None:
        self._attempt = attempt
        self._new_activity = new_activity
        self._policy = policy
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self.in_flight: dict[InFlight, None] = {}
        """In the order of their start."""
        self.retries = 0
        self._is_stopping = False
        self.changed = asyncio.Event()
        """Set whenever something is settled."""

    def submit(self, task: Task) -> None:
        entry = InFlight(task, time.monotonic(), self._new_activity(task, 1))
        self.in_flight[entry] = None
        self._start(entry)

    async def drain(self, grace_s: float) -> None:
        """Start nothing more; what runs may end by itself for a while, then it is cancelled."""
        self._start_no_more()
        await self._until_empty(grace_s)
        for entry in list(self.in_flight):
            self._cancel(entry)
        await self._until_empty(TEARDOWN_S + 1)

    def abandon_all(self) -> None:
        """Settle everything now; what runs is cancelled, and ends whenever it does."""
        self._start_no_more()
        for entry in list(self.in_flight):
            self._cancel(entry)
            self._leave_behind(entry)

    def _start_no_more(self) -> None:
        """What waits for another try does not get it."""
        self._is_stopping = True
        for entry in [entry for entry in self.in_flight if entry.running is None]:
            assert entry.last is not None
            self._finish(entry, entry.last)

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
        if entry.attempts > 1:
            self.retries += 1
            entry.activity = self._new_activity(entry.task, entry.attempts)
        entry.running = self._loop.create_task(self._attempt(entry.task, entry.activity))
        entry.running.add_done_callback(partial(self._ended, entry))
        entry.timer = self._loop.call_later(self._policy.rollout_timeout_s, self._time_out, entry)

    def _time_out(self, entry: InFlight) -> None:
        doing, limit_s = entry.activity.waits_for(), self._policy.rollout_timeout_s
        self._cut(entry, FailureKind.TIMEOUT, "TimeoutError", f"not done after {limit_s:g} s; it was {doing}")

    def _cancel(self, entry: InFlight) -> None:
        doing = entry.activity.waits_for()
        self._cut(entry, FailureKind.CANCELLED, "CancelledError", f"the run was stopped; it was {doing}")

    def _cut(self, entry: InFlight, kind: FailureKind, error_type: str, message: str) -> None:
        """End a try, which gets a moment to clean up."""
        if entry.running is None or entry.cut is not None:
            return
        task = entry.task
        entry.cut = Failure(task.key, task.agent_ref, kind, error_type, message)
        if entry.timer is not None:
            entry.timer.cancel()
        entry.running.cancel()
        entry.timer = self._loop.call_later(TEARDOWN_S, self._abandon, entry)

    def _abandon(self, entry: InFlight) -> None:
        """Settle a try that does not end although it was cancelled."""
        if entry.running is not None:
            entry.running.cancel()  # its clean-up, too, had its time
            self._leave_behind(entry)

    def _leave_behind(self, entry: InFlight) -> None:
        assert entry.cut is not None
        entry.running = None
        self._take(entry, entry.cut)

    def _ended(self, entry: InFlight, running: "asyncio.Task[Outcome]") -> None:
        if entry.running is not running:  # left behind, and settled then
            if not running.cancelled():
                running.exception()  # so that nobody complains that it was never looked at
            return
        entry.running = None
        outcome = _outcome_of(entry.task, running)
        if entry.cut is not None and isinstance(outcome, Failure):
            outcome = entry.cut  # whatever it made of being cancelled, that is why it failed
        self._take(entry, outcome)

    def _take(self, entry: InFlight, outcome: Outcome) -> None:
        """A try is over: settle the task, or wait for the next try."""
        if entry.timer is not None:
            entry.timer.cancel()
        if isinstance(outcome, Success):
            if entry.attempts + entry.task.earlier_attempts > 1:
                outcome = outcome.after(entry.attempts, entry.task.earlier_attempts)
            self._finish(entry, outcome)
            return
        entry.data_attempts += rule_of(outcome.failure_class).uses_data_attempts
        failure = replace(outcome, attempts=entry.attempts, data_attempts=entry.data_attempts)
        elapsed_s = time.monotonic() - entry.started
        wait_s = None if self._is_stopping else self._policy.wait_s(failure, entry.task, elapsed_s)
        if wait_s is None:
            self._finish(entry, failure)
            return
        entry.last = failure
        entry.activity.wait_for_retry(failure.status or failure.failure_class)
        entry.timer = self._loop.call_later(wait_s, self._start, entry)

    def _finish(self, entry: InFlight, outcome: Outcome) -> None:
        if entry not in self.in_flight:
            return  # to settle another may have ended the run, and this one with it
        del self.in_flight[entry]
        if entry.timer is not None:
            entry.timer.cancel()
        self.changed.set()
        self._settle(outcome)


def _outcome_of(task: Task, running: "asyncio.Task[Outcome]") -> Outcome:
    """What a try came to; the boundary below it lets nothing through but cancellation."""
    if running.cancelled():
        error_type, message = "CancelledError", "code of the rollout cancelled it"
    elif (error := running.exception()) is not None:
        error_type, message = type(error).__name__, str(error) or repr(error)
    else:
        return running.result()
    return Failure(task.key, task.agent_ref, FailureKind.DATA, error_type, message)


def oldest(entries: Iterable[InFlight], number: int) -> list[dict[str, object]]:
    """What the rollouts that have been in flight the longest are waiting for."""
    now = time.monotonic()
    return [
        {
            "rollout": str(entry.task.key),
            "agent": entry.task.agent,
            "seconds": round(now - entry.started, 1),
            "waits_for": entry.activity.waits_for(),
        }
        for entry, _ in zip(entries, range(number), strict=False)
    ]
