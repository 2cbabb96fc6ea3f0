"""Where rollouts run: one interface, and the executor of this event loop.

An executor settles every task that it takes exactly once; those that it was stopped before taking stay owed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from nemo_gym.rollout_collection.execution.attempt import Attempt
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy, oldest
from nemo_gym.rollout_collection.outcome import Outcome, Task

SHOWN_OLDEST = 20
Settle = Callable[[Outcome], None]


@dataclass(frozen=True)
class ExecutorState:
    """What an executor is doing."""

    in_flight: int = 0
    retries: int = 0
    oldest: list[dict[str, object]] = field(default_factory=list)
    """The rollouts that have been in flight the longest, and what each waits for."""
    limits: dict[str, int] = field(default_factory=dict)
    """Calls that each endpoint gets at once, where concurrency adapts."""


class Executor(Protocol):
    """Plays tasks."""

    async def run(self, tasks: Iterator[Task], settle: Settle) -> None:
        """Play all tasks, each settled once; ends early when stopped."""

    def stop(self, grace_s: float) -> None:
        """Take no more tasks; what runs may go on for so long. Again with 0: leave at once."""

    def in_flight(self) -> int: ...

    def state(self) -> ExecutorState: ...


class LocalExecutor:
    """Plays tasks in this event loop."""

    def __init__(self, attempt: Attempt, policy: RolloutPolicy, parallel: int) -> None:
        self._attempt = attempt
        self._policy = policy
        self._parallel = parallel
        self._dispatcher: Dispatcher | None = None
        self._grace_s: float | None = None

    async def run(self, tasks: Iterator[Task], settle: Settle) -> None:
        attempt = self._attempt
        self._dispatcher = dispatcher = Dispatcher(attempt, attempt.activity, self._policy, settle)
        try:
            for task in tasks:
                while len(dispatcher.in_flight) >= self._parallel and self._grace_s is None:
                    await self._next_change(dispatcher)
                if self._grace_s is not None:
                    break
                dispatcher.submit(task)
            while dispatcher.in_flight and self._grace_s is None:
                await self._next_change(dispatcher)
            if self._grace_s is not None:
                await dispatcher.drain(self._grace_s)
        finally:
            dispatcher.abandon_all()

    @staticmethod
    async def _next_change(dispatcher: Dispatcher) -> None:
        """Every rollout has a deadline, so this ends."""
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
        dispatcher = self._dispatcher
        if dispatcher is None:
            return ExecutorState()
        return ExecutorState(
            len(dispatcher.in_flight),
            dispatcher.retries,
            oldest(dispatcher.in_flight, SHOWN_OLDEST),
            self._attempt.limits.current() if self._attempt.limits is not None else {},
        )
