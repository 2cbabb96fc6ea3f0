"""The limits of a run: once one is reached, no more rollouts are started. Running rollouts finish."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nemo_gym.rollout_collection.outcome import Outcome, PlannedRollout, Success

_TOKENS = "total_tokens"


@dataclass
class RunLimits:
    """Hands out rollouts until a limit is reached."""

    max_run_time_s: float | None = None
    max_total_tokens: int | None = None
    clock: Callable[[], float] = time.monotonic
    tokens: float = 0.0
    """Used by the rollouts that were recorded in this run."""
    reached: str | None = None
    """The limit that kept a rollout from being started."""
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    def take(self, outcome: Outcome) -> None:
        """Count a recorded outcome."""
        if isinstance(outcome, Success):
            self.tokens += outcome.numbers.get(_TOKENS, 0.0)

    def within(self, rollouts: Iterator[PlannedRollout]) -> Iterator[PlannedRollout]:
        """The rollouts, up to the moment at which a limit is reached."""
        for rollout in rollouts:
            self.reached = self._reached_now()
            if self.reached is not None:
                return
            yield rollout

    def _reached_now(self) -> str | None:
        if self.max_run_time_s is not None and self.clock() - self._started >= self.max_run_time_s:
            return f"max_run_time_s={self.max_run_time_s:g} was reached"
        if self.max_total_tokens is not None and self.tokens >= self.max_total_tokens:
            return f"max_total_tokens={self.max_total_tokens} was reached ({self.tokens:.0f} tokens)"
        return None
