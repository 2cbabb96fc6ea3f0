"""The ledger of a run: planned = succeeded + failed by kind + not run, at every moment."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.failures import AnyKind, rule_of
from nemo_gym.rollout_collection.outcome import Failure, Outcome, Success
from nemo_gym.terminal import one_line

_FEWEST = 20
"""Rollouts that must have been started before a share of them says anything."""
_LONGEST_CAUSE = 200
_SECONDS = re.compile(r"\b\d+ s in ")
"""How long a rollout had waited when it was cut: each another time, for the same cause."""


@dataclass
class Ledger:
    planned: int
    resumed: int = 0
    """Succeeded in earlier runs."""
    left_alone: Counter[AnyKind] = field(default_factory=Counter)
    """Failed for good in earlier runs, by class."""
    succeeded_now: int = 0
    failed_now: Counter[AnyKind] = field(default_factory=Counter)
    retried: int = 0
    """Rollouts that took more than one try."""
    causes: Counter[str] = field(default_factory=Counter)
    """What went wrong, most of it in few words."""

    def take(self, outcome: Outcome) -> None:
        self.retried += outcome.attempts > 1
        if isinstance(outcome, Success):
            self.succeeded_now += 1
        elif outcome.is_kept:
            self.failed_now[outcome.failure_class] += 1
            self._note(outcome)

    def _note(self, failure: Failure) -> None:
        status = f" {failure.status}" if failure.status is not None else ""
        cause = f"{failure.failure_class}: {failure.error_type}{status}: {_brief(failure.message)}"
        if cause in self.causes or len(self.causes) < 1000:
            self.causes[cause] += 1

    @property
    def succeeded(self) -> int:
        return self.resumed + self.succeeded_now

    @property
    def failed(self) -> Counter[AnyKind]:
        return self.left_alone + self.failed_now

    @property
    def not_run(self) -> int:
        return self.planned - self.succeeded - self.failed.total()

    @property
    def is_complete(self) -> bool:
        return self.succeeded == self.planned

    def exceeds(self, max_failure_rate: float | None, in_flight: int, to_run: int) -> bool:
        """Whether more have failed than is allowed, by themselves: a share below 1, else a count."""
        counted = [kind for kind in self.failed_now if rule_of(kind).counts_as_attempt]
        failures = sum(self.failed_now[kind] for kind in counted)
        if max_failure_rate is None or not failures:
            return False
        if max_failure_rate >= 1:
            return failures > max_failure_rate
        # Those in flight may all succeed: failures are often quicker than successes.
        started = self.succeeded_now + failures + in_flight
        return started >= min(_FEWEST, to_run) and failures > max_failure_rate * started

    def as_data(self) -> dict[str, Any]:
        return {
            "planned": self.planned,
            "succeeded": self.succeeded,
            "failed": dict(self.failed),
            "not_run": self.not_run,
            "retried": self.retried,
        }

    def __str__(self) -> str:
        failed = self.failed
        kinds = (
            f" ({', '.join(f'{number} {one_line(kind)}' for kind, number in failed.most_common())})"
            if failed
            else ""
        )
        return (
            f"{self.planned} planned = {self.succeeded} succeeded + {failed.total()} failed{kinds} "
            f"+ {self.not_run} not run; {self.retried} retried"
        )

    def worst(self, number: int = 5) -> list[str]:
        """The most frequent causes, each with its count."""
        return [f"{count} x {one_line(cause)}" for cause, count in self.causes.most_common(number)]


def _brief(message: str) -> str:
    """The end of a long message: an error that came through several servers has its cause there."""
    text = _SECONDS.sub("in ", message.replace("\\", ""))
    return text if len(text) <= _LONGEST_CAUSE else f"… {text[-_LONGEST_CAUSE:]}"
