"""The worker link: the messages between a pool and its workers, and the interface of what carries them.

To play rollouts elsewhere, on a cluster for example, implement `StartWorker` and `WorkerLink` for the pool,
and run `worker.serve` with a `DriverLink` at the other end.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from nemo_gym.rollout_collection.execution.executor import ExecutorState
from nemo_gym.rollout_collection.outcome import Failure, Outcome, PlannedRollout


@dataclass(frozen=True, slots=True)
class Play:
    """To a worker: play these rollouts as well."""

    rollouts: list[PlannedRollout]


@dataclass(frozen=True, slots=True)
class Stop:
    """To a worker: start nothing more, let rollouts finish for the grace period, cancel the rest, end."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class End:
    """To a worker: there is nothing left to play; end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: its servers run."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """From a worker: its servers cannot be started, for a reason that another worker would have too."""

    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """From a worker: rollouts have ended."""

    outcomes: list[Outcome]


@dataclass(frozen=True, slots=True)
class Report:
    """From a worker, every second: what it is doing. Also shows that it is alive."""

    state: ExecutorState


ToWorker = Play | Stop | End
FromWorker = Ready | StartFailed | Finished | Report


class LinkClosedError(Exception):
    """The other side has closed the link or is dead."""


class WorkerLink(Protocol):
    """The pool's link to one worker, from its start to its end."""

    def send(self, message: ToWorker) -> None:
        """Queue a message, in order. Does not wait; does nothing once the link is closed."""

    async def receive(self) -> FromWorker:
        """The next message; raises LinkClosedError if there are none. Not called again once cancelled."""

    def kill(self) -> None:
        """End the worker and everything that it started, now. Does nothing if it has ended."""

    async def close(self) -> str:
        """Close the link and wait until the worker has ended; returns how it did (`exit code 1`).

        May be called again after a cancellation.
        """

    def blamed(self) -> Failure | None:
        """Once closed: the failure of the rollout because of which the worker ended itself."""


class DriverLink(Protocol):
    """The worker's link to the pool."""

    def send(self, message: FromWorker) -> None:
        """Queue a message, in order. Does not wait."""

    async def receive(self) -> ToWorker:
        """The next message; raises LinkClosedError when the pool is gone. Not called again once cancelled."""


StartWorker = Callable[[], Awaitable[WorkerLink]]
"""Starts one worker and returns the link to it; raises OSError if it cannot be started."""
