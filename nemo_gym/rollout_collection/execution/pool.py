"""The worker pool: an executor that hands rollouts out to workers and takes back their outcomes.

The limit on rollouts in flight is that of the whole run; each worker has a share of it. When a worker dies,
its rollouts are suspects, which are handed out again last (`suspects.py`). The pool does not know what a
worker is: it reaches workers through links (`link.py`).
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from nemo_gym.errors import WorkerError
from nemo_gym.failures import FailureKind
from nemo_gym.records import Key
from nemo_gym.rollout_collection.execution.executor import (
    SHOWN_OLDEST,
    ExecutorState,
    NoteDeaths,
    RecordOutcome,
)
from nemo_gym.rollout_collection.execution.link import (
    End,
    Finished,
    LinkClosedError,
    Play,
    Report,
    StartFailed,
    StartWorker,
    Stop,
    WorkerLink,
)
from nemo_gym.rollout_collection.execution.suspects import WorkQueue
from nemo_gym.rollout_collection.outcome import Failure, PlannedRollout

logger = logging.getLogger(__name__)

_HINT = "The rollouts recorded so far are safe; continue with +resume_from_cache=true"


@dataclass(frozen=True)
class PoolPolicy:
    """How long a pool waits for its workers, and how many deaths it accepts."""

    startup_s: float = 300.0
    """Time until the servers of a worker are ready. Generous, because some load models."""
    silence_s: float = 3630.0
    """Longest time without a message from a worker. It reports every second unless a rollout blocks its event
    loop, so this is the deadline of a rollout and 30 s more."""
    ending_s: float = 30.0
    """Time for a worker to shut down its servers when there is nothing left to play."""
    teardown_s: float = 5.0
    """Time for a cancelled rollout to end; a stopped worker gets twice that on top of the grace period."""
    exit_s: float = 10.0
    """Time for a worker to end after its link is closed, and again after it is killed."""
    exit_now_s: float = 0.5
    """The same when the run must end at once."""
    deaths_in_a_row: int = 10
    """The run ends after this many deaths in a row, without an outcome between them, of workers that played
    no suspects."""
    deaths_per_rollout: int = 3
    """A rollout fails after this many deaths of workers that played it. The last one played nothing else."""


def shares_of(parallel: int, num_workers: int) -> list[int]:
    """How many rollouts each worker may have in flight; no more workers than rollouts."""
    count = min(num_workers, parallel)
    return [parallel // count + (number < parallel % count) for number in range(count)]


@dataclass
class _Slot:
    """The place of one worker in the pool. A worker that dies is replaced by another in the same slot."""

    number: int
    share: int
    """Maximum number of rollouts in flight."""
    link: WorkerLink | None = None
    in_flight: dict[Key, PlannedRollout] = field(default_factory=dict)
    state: ExecutorState = field(default_factory=ExecutorState)
    is_ready: bool = False
    blamed: Failure | None = None
    """The failure because of which its last worker ended itself."""

    def kill(self) -> None:
        if self.link is not None:
            self.link.kill()


class WorkerPool:
    """Plays rollouts in workers."""

    def __init__(self, start: StartWorker, shares: Sequence[int], policy: PoolPolicy) -> None:
        self._start = start
        self._policy = policy
        self._slots = [_Slot(number, share) for number, share in enumerate(shares)]
        self.on_deaths: NoteDeaths = lambda deaths: None
        self._queue = WorkQueue(iter(()), policy.deaths_per_rollout)
        self._deaths_in_a_row = 0
        self._retries_of_dead = 0
        self._grace_s: float | None = None
        """Set once the pool is stopped."""
        self._record: RecordOutcome = lambda outcome: None

    async def run(self, rollouts: Iterator[PlannedRollout], record: RecordOutcome) -> None:
        self._queue, self._record = WorkQueue(rollouts, self._policy.deaths_per_rollout), record
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(self._keep_filled(slot))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            for slot in self._slots:
                slot.kill()
            self._record_cancelled()

    def stop(self, grace_s: float) -> None:
        self._grace_s = grace_s
        for slot in self._slots:
            if grace_s and slot.is_ready and slot.link is not None:
                slot.link.send(Stop(grace_s))
                self._kill_after(slot, grace_s + 2 * self._policy.teardown_s)
            else:
                slot.kill()

    def in_flight(self) -> int:
        return sum(len(slot.in_flight) for slot in self._slots)

    def state(self) -> ExecutorState:
        states = [slot.state for slot in self._slots]
        waiting = sorted((one for state in states for one in state.oldest), key=_age, reverse=True)
        limits: dict[str, int] = {}
        for state in states:
            for origin, limit in state.limits.items():
                limits[origin] = limits.get(origin, 0) + limit
        retries = self._retries_of_dead + sum(state.retries for state in states)
        return ExecutorState(
            self.in_flight(),
            retries,
            waiting[:SHOWN_OLDEST],
            limits,
            endpoints=[report for state in states for report in state.endpoints],
            refused=sum(state.refused for state in states),
            refusal=next((state.refusal for state in states if state.refusal), ""),
            refused_s=max((state.refused_s for state in states), default=0.0),
        )

    def take_waits(self, waits: Mapping[str, float]) -> None:
        """Nothing to do: the workers request them themselves."""

    async def _keep_filled(self, slot: _Slot) -> None:
        """Run workers in a slot, one after another, until there is nothing left to play."""
        while not self._is_over():
            ending = await self._run_worker(slot)
            if self._grace_s is not None:
                return
            if slot.in_flight or not self._is_over():
                self._take_back(slot, ending)

    def _is_over(self) -> bool:
        """Whether there is nothing left for any worker to do."""
        if self._grace_s is not None:
            return True
        # Other workers may die and leave their rollouts to this one.
        return self._queue.is_empty and not self.in_flight()

    async def _run_worker(self, slot: _Slot) -> str:
        """One worker from its start to its end; returns how it ended."""
        try:
            link = slot.link = await self._start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise WorkerError(f"cannot start worker {slot.number}: {reason}. {_HINT}") from error
        if self._grace_s is not None:  # stopped during the start
            link.kill()
        try:
            await self._converse(slot, link)
        except LinkClosedError:
            pass  # it died, or it ended as it was asked to
        except TimeoutError:
            seconds = self._policy.silence_s
            logger.warning("worker %d has sent nothing for %g s; killing it", slot.number, seconds)
            link.kill()
        finally:
            slot.is_ready = False
            try:
                ending = await self._reap(slot.number, link)
                slot.blamed = link.blamed()
            finally:
                slot.link = None
        return ending

    async def _converse(self, slot: _Slot, link: WorkerLink) -> None:
        limit_s = self._policy.startup_s
        try:
            async with asyncio.timeout(limit_s):
                message = await link.receive()
        except TimeoutError:
            raise WorkerError(
                f"the servers of worker {slot.number} did not start within {limit_s:g} s; see the output "
                f"above, and fix their start-up. {_HINT}"
            ) from None
        if isinstance(message, StartFailed):
            if self._is_over():  # the other workers have finished everything
                return
            raise WorkerError(message.message)
        slot.is_ready = True
        self._feed(slot, link)
        while True:
            async with asyncio.timeout(self._policy.silence_s):
                message = await link.receive()
            if isinstance(message, Report):
                slot.state = message.state
            elif isinstance(message, Finished):
                self._deaths_in_a_row = 0
                for outcome in message.outcomes:
                    if slot.in_flight.pop(outcome.key, None) is not None:
                        self._record(outcome)
                self._feed(slot, link)

    def _feed(self, slot: _Slot, link: WorkerLink) -> None:
        """Give a worker as many rollouts as it may have; end all workers if none are left anywhere."""
        if self._grace_s is not None:
            return
        rollouts = self._queue.next_for(slot.in_flight, slot.share)
        slot.in_flight.update((rollout.key, rollout) for rollout in rollouts)
        if rollouts:
            link.send(Play(rollouts))
        elif self._is_over():
            self._end_all()

    def _end_all(self) -> None:
        for slot in self._slots:
            if slot.is_ready and slot.link is not None:
                slot.link.send(End())
                self._kill_after(slot, self._policy.ending_s)
            else:
                slot.kill()

    @staticmethod
    def _kill_after(slot: _Slot, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, slot.kill)

    def _take_back(self, slot: _Slot, ending: str) -> None:
        """A worker has ended before its rollouts: they are played again."""
        rollouts, slot.in_flight = list(slot.in_flight.values()), {}
        self._retries_of_dead += slot.state.retries
        slot.state = ExecutorState()
        blamed = slot.blamed
        if blamed is not None and any(rollout.key == blamed.key for rollout in rollouts):
            self._blame(slot.number, blamed, rollouts)
        else:
            self._suspect(slot.number, ending, rollouts)
        for other in self._slots:
            if other.is_ready and other.link is not None:
                self._feed(other, other.link)

    def _blame(self, number: int, blamed: Failure, rollouts: list[PlannedRollout]) -> None:
        """A worker ended itself because of one rollout; the others are played again, without suspicion."""
        logger.warning("worker %d ended because of rollout %s: %s", number, blamed.key, blamed.message)
        for rollout in rollouts:
            if rollout.key != blamed.key:
                self._queue.put_back_unharmed(rollout)
        self._record(blamed)

    def _suspect(self, number: int, ending: str, rollouts: list[PlannedRollout]) -> None:
        """A worker died for an unknown reason: all rollouts that it played are suspects."""
        is_suspect = any(map(self._queue.degree, rollouts))
        for rollout in rollouts:
            if not self._queue.put_back(rollout):
                self._record(self._worker_died(rollout, ending))
        if rollouts:
            self.on_deaths({one.key: one.worker_deaths + self._queue.deaths(one) for one in rollouts})
        if not is_suspect:  # the death of a suspect's worker is no surprise
            logger.warning("worker %d died (%s); rollouts to play again: %d", number, ending, len(rollouts))
            self._count_death(number, ending)

    def _count_death(self, number: int, ending: str) -> None:
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > self._policy.deaths_in_a_row:
            raise WorkerError(
                f"workers died {self._deaths_in_a_row} times in a row without finishing a rollout (the last, "
                f"worker {number}, with {ending}); see their output above. {_HINT}"
            )
        # Many bad rollouts in a row must not end the run, so the next worker begins further on in the plan.
        self._queue.postpone(2 ** (self._deaths_in_a_row - 1) - 1)

    def _worker_died(self, rollout: PlannedRollout, ending: str) -> Failure:
        deaths = self._queue.deaths(rollout)
        message = f"its worker died ({ending}) while it played only this rollout"
        if deaths > 1:
            message = f"{message}; {deaths} workers died that played it"
        kind = FailureKind.INFRASTRUCTURE
        return Failure(rollout.key, rollout.agent_ref, kind, "WorkerDied", message, attempts=deaths)

    async def _reap(self, number: int, link: WorkerLink) -> str:
        """Wait for a worker to end, kill whatever is left of it, and return how it ended."""
        patience_s = self._policy.exit_s if self._grace_s != 0 else self._policy.exit_now_s
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await link.close()
        link.kill()
        try:
            async with asyncio.timeout(self._policy.exit_s):
                return await link.close()
        except TimeoutError:  # the system has not ended it yet: it waits for a disk or a device
            logger.warning("worker %d is still running %g s after it was killed", number, self._policy.exit_s)
            return "killed"

    def _record_cancelled(self) -> None:
        """Record the rollouts that were taken and have no outcome when the run ends."""
        cancelled = [
            *self._queue.interrupted(),
            *(one for slot in self._slots for one in slot.in_flight.values()),
        ]
        for slot in self._slots:
            slot.in_flight = {}
        for one in cancelled:
            self._record(
                Failure(
                    one.key, one.agent_ref, FailureKind.CANCELLED, "CancelledError", "the run was stopped"
                )
            )


def _age(waiting: dict[str, object]) -> float:
    seconds = waiting["seconds"]
    return seconds if isinstance(seconds, float) else 0.0
