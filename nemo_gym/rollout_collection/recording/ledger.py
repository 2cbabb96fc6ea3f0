"""The ledger of a run: planned = succeeded + failed by kind + not run, at every moment.

A rollout that the run cancelled has not failed: it counts as not run.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.failures import AnyKind
from nemo_gym.rollout_collection.outcome import Outcome, Success
from nemo_gym.rollout_collection.recording.causes import Causes
from nemo_gym.terminal import one_line

_FEWEST = 20
"""How many rollouts must have started before a share of failures is meaningful."""


@dataclass
class Ledger:
    planned: int
    resumed: int = 0
    """Succeeded in earlier runs."""
    skipped: Counter[AnyKind] = field(default_factory=Counter)
    """Failed in earlier runs and not attempted again, by kind."""
    succeeded_now: int = 0
    failed_now: Counter[AnyKind] = field(default_factory=Counter)
    cancelled: int = 0
    """Started, but cancelled because the run was stopped."""
    lost: int = 0
    """Recorded, but not in the output any more: another program has removed them."""
    retried: int = 0
    """Rollouts that took more than one attempt."""
    causes: Causes = field(default_factory=Causes)
    """Why rollouts failed in this run."""

    def take(self, outcome: Outcome) -> None:
        self.retried += outcome.attempts > 1
        if isinstance(outcome, Success):
            self.succeeded_now += 1
        elif outcome.is_failed:
            self.failed_now[outcome.kind] += 1
            self.causes.take(outcome)
        elif outcome.is_kept:
            self.cancelled += 1

    @property
    def succeeded(self) -> int:
        return max(0, self.resumed + self.succeeded_now - self.lost)

    @property
    def failed(self) -> Counter[AnyKind]:
        return self.skipped + self.failed_now

    @property
    def not_run(self) -> int:
        """Rollouts that never started or were cancelled."""
        return self.planned - self.succeeded - self.failed.total()

    @property
    def is_complete(self) -> bool:
        return self.succeeded == self.planned

    def as_data(self) -> dict[str, Any]:
        return {
            "planned": self.planned,
            "succeeded": self.succeeded,
            "failed": dict(self.failed),
            "not_run": self.not_run,
            "cancelled": self.cancelled,
            "retried": self.retried,
        }

    def __str__(self) -> str:
        failed = self.failed
        kinds = (
            f" ({', '.join(f'{number} {one_line(kind)}' for kind, number in failed.most_common())})"
            if failed
            else ""
        )
        cancelled = f" ({self.cancelled} cancelled)" if self.cancelled else ""
        return (
            f"{self.planned} planned = {self.succeeded} succeeded + {failed.total()} failed{kinds} "
            f"+ {self.not_run} not run{cancelled}; {self.retried} retried"
        )


@dataclass(frozen=True)
class FailureBudget:
    """How many failures a run accepts before it gives up."""

    max_failure_rate: float | None
    """A share of the rollouts started if below 1, else a number of rollouts. None: no limit."""
    to_run: int

    def is_exceeded(self, ledger: Ledger, in_flight: int) -> bool:
        """Whether too many rollouts have failed."""
        limit, failures = self.max_failure_rate, ledger.failed_now.total()
        if limit is None or not failures:
            return False
        if limit >= 1:
            return failures > limit
        # Rollouts in flight count as started: failures are often faster than successes.
        started = ledger.succeeded_now + failures + in_flight
        return started >= min(_FEWEST, self.to_run) and failures > limit * started
