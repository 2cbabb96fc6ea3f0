"""The local executor: plays rollouts in this event loop."""

from collections.abc import Iterator, Mapping

from nemo_gym.rollout_collection.execution.attempt import Attempt
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy
from nemo_gym.rollout_collection.execution.executor import ExecutorState, NoteDeaths, RecordOutcome
from nemo_gym.rollout_collection.outcome import PlannedRollout


class LocalExecutor:
    """Plays rollouts in this event loop."""

    def __init__(self, attempt: Attempt, policy: RolloutPolicy, parallel: int) -> None:
        self._attempt = attempt
        self._policy = policy
        self._parallel = parallel
        self._dispatcher: Dispatcher | None = None
        self._grace_s: float | None = None
        self.on_deaths: NoteDeaths = lambda deaths: None  # there are no workers

    async def run(self, rollouts: Iterator[PlannedRollout], record: RecordOutcome) -> None:
        attempt = self._attempt
        self._dispatcher = dispatcher = Dispatcher(attempt, attempt.activity, self._policy, record)
        try:
            while self._grace_s is None:
                if len(dispatcher.in_flight) >= self._parallel:
                    await self._next_change(dispatcher)
                    continue
                rollout = next(rollouts, None)  # not before it can start: a limit of the run may be reached
                if rollout is None:
                    break
                dispatcher.submit(rollout)
            while dispatcher.in_flight and self._grace_s is None:
                await self._next_change(dispatcher)
            if self._grace_s is not None:
                await dispatcher.drain(self._grace_s)
        finally:
            dispatcher.abandon_all()

    @staticmethod
    async def _next_change(dispatcher: Dispatcher) -> None:
        """Wait until an outcome was recorded. Every rollout has a deadline, so this ends."""
        dispatcher.changed.clear()
        await dispatcher.changed.wait()

    def stop(self, grace_s: float) -> None:
        self._grace_s = grace_s
        if self._dispatcher is not None:
            self._dispatcher.changed.set()
            if not grace_s:
                self._dispatcher.abandon_all()

    def in_flight(self) -> int:
        return len(self._dispatcher.in_flight) if self._dispatcher is not None else 0

    def state(self) -> ExecutorState:
        if self._dispatcher is None:
            return ExecutorState()
        return self._dispatcher.state(self._attempt.limits, self._attempt.endpoints)

    def take_waits(self, waits: Mapping[str, float]) -> None:
        if self._dispatcher is not None:
            self._dispatcher.take_waits(waits)
