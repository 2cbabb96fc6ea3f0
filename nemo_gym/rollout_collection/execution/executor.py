"""The executor: where rollouts are played.

An executor records exactly one outcome for every rollout that it takes. Rollouts that it has not taken when
it is stopped remain to be played.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from nemo_gym.endpoint_health import EndpointReport
from nemo_gym.records import Key
from nemo_gym.rollout_collection.outcome import Outcome, PlannedRollout

SHOWN_OLDEST = 20
RecordOutcome = Callable[[Outcome], None]
NoteDeaths = Callable[[Mapping[Key, int]], None]


@dataclass(frozen=True)
class ExecutorState:
    """What an executor is doing."""

    in_flight: int = 0
    retries: int = 0
    oldest: list[dict[str, object]] = field(default_factory=list)
    """The rollouts that have been in flight longest, and what each waits for."""
    limits: dict[str, int] = field(default_factory=dict)
    """Concurrent calls allowed per endpoint, if concurrency is adaptive."""
    endpoints: list[EndpointReport] = field(default_factory=list)
    """The endpoints, as each process sees them."""
    refused: int = 0
    """Rollouts whose last attempt was refused because of the configuration of an endpoint."""
    refusal: str = ""
    """The error of one of them."""
    refused_s: float = 0.0
    """Time since the first of them was refused."""

    def with_refused(self) -> list[EndpointReport]:
        """The endpoints. Rollouts wait for those that refuse them although they have responded before.

        If no endpoint refuses them, as when an agent declares the failure, they wait for one without a URL.
        """
        if not self.refused:
            return self.endpoints
        if not any(one.refusal and not one.is_server for one in self.endpoints):
            waiting = {"refused": self.refused}
            unknown = EndpointReport(
                "rollouts", "", failing_s=self.refused_s, waiting=waiting, refusal=self.refusal
            )
            return [*self.endpoints, unknown]
        return [
            replace(
                one, waiting={**one.waiting, "refused": self.refused}, failing_s=one.failing_s or one.quiet_s
            )
            if one.refusal and one.successes
            else one
            for one in self.endpoints
        ]

    def waiting_calls(self) -> dict[str, int]:
        """How many calls wait for endpoints, by cause; the most frequent first."""
        counts: Counter[str] = Counter()
        for report in self.with_refused():
            counts.update(report.waiting)
        return dict(counts.most_common())


class Executor(Protocol):
    """Plays rollouts."""

    on_deaths: NoteDeaths
    """Called when a worker has died, with the rollouts that it played and the deaths of each so far."""

    async def run(self, rollouts: Iterator[PlannedRollout], record: RecordOutcome) -> None:
        """Play all rollouts and record one outcome for each; returns early when stopped."""

    def stop(self, grace_s: float) -> None:
        """Take no more rollouts; those in flight may run for the grace period. With 0: cancel them now."""

    def in_flight(self) -> int: ...

    def state(self) -> ExecutorState: ...

    def take_waits(self, waits: Mapping[str, float]) -> None:
        """How long calls of its attempts have waited for endpoints in other processes, by their key."""
