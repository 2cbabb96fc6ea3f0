"""Retry budgets, retry delays and time limits of rollouts, and counters of retries and failures."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from nemo_rl.experience.failures import RolloutTimeout


@dataclass(frozen=True)
class RolloutTimeouts:
    """Limits in seconds; None: no limit."""

    rollout_s: float | None = None
    """A whole group, with the retries of its members."""
    generation_s: float | None = None
    """One turn of the policy."""
    env_s: float | None = None
    """One step of the environment."""

    def __post_init__(self) -> None:
        for name in ("rollout_s", "generation_s", "env_s"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} must be more than 0 seconds, or None for no limit; not {limit}")


@dataclass(frozen=True)
class RolloutRetryPolicy:
    """How often a prompt is attempted, and how many prompts may be lost."""

    max_infra_attempts: int
    """Infrastructure failures after which a prompt is not retried any more."""
    max_data_attempts: int
    """Data failures after which a prompt is not retried any more."""
    max_gym_row_attempts: int
    """Gym path: times a row is sent within one attempt of its group, the first included."""
    backoff_base_s: float = 1.0
    """Delay after the first infrastructure failure; doubles with each further one."""
    max_backoff_s: float = 30.0
    """Longest delay."""
    max_skipped_prompts: int = 0
    """Prompts of a run that may be skipped because of data failures."""
    max_consecutive_dropped_prompts: int = 0
    """Prompts in a row that may be dropped because of infrastructure failures; one more ends the run."""

    def __post_init__(self) -> None:
        for name in ("max_infra_attempts", "max_data_attempts", "max_gym_row_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in (
            "backoff_base_s",
            "max_backoff_s",
            "max_skipped_prompts",
            "max_consecutive_dropped_prompts",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @classmethod
    def single_attempt(cls) -> "RolloutRetryPolicy":
        """A policy without retries."""
        return cls(max_infra_attempts=1, max_data_attempts=1, max_gym_row_attempts=1)

    def backoff_s(self, failures: int) -> float:
        """The delay after this many infrastructure failures."""
        return float(min(self.backoff_base_s * 2.0 ** min(failures - 1, 60), self.max_backoff_s))


_NO_LIMIT = nullcontext()


def within(limit_s: float | None, what: str) -> AbstractAsyncContextManager[None]:
    """Raise RolloutTimeout if the body takes longer than `limit_s`; a TimeoutError of the body passes."""
    return _NO_LIMIT if limit_s is None else _within(limit_s, what)


@asynccontextmanager
async def _within(limit_s: float, what: str) -> AsyncIterator[None]:
    clock = asyncio.timeout(limit_s)
    try:
        async with clock:
            yield
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise RolloutTimeout(f"{what} took longer than {limit_s:g} s") from error


@dataclass
class RolloutStats:
    """Counts of a run."""

    committed: int = 0
    skipped: int = 0
    """Prompts skipped because of data failures."""
    gym_row_redispatches: int = 0
    redispatches: Counter[str] = field(default_factory=Counter)
    """Retries after infrastructure failures, by exception name."""
    data_retries: Counter[str] = field(default_factory=Counter)
    """Retries after data failures, by exception name."""
    data_failures: Counter[str] = field(default_factory=Counter)
    """Prompts with max_data_attempts data failures, by exception name."""
    infra_drops: Counter[str] = field(default_factory=Counter)
    """Prompts with max_infra_attempts infrastructure failures, by exception name."""
    consecutive_infra_drops: int = 0
    max_consecutive_infra_drops: int = 0

    def commit(self) -> None:
        self.committed += 1
        self.consecutive_infra_drops = 0

    def drop(self, name: str) -> None:
        self.infra_drops[name] += 1
        self.consecutive_infra_drops += 1
        self.max_consecutive_infra_drops = max(self.max_consecutive_infra_drops, self.consecutive_infra_drops)

    def as_metrics(self) -> dict[str, float]:
        by_name = {
            "redispatch_total": self.redispatches,
            "data_retry_total": self.data_retries,
            "data_failures_total": self.data_failures,
            "infra_drops_total": self.infra_drops,
        }
        metrics = {
            "rollout/committed_total": float(self.committed),
            "rollout/skipped_total": float(self.skipped),
            "rollout/gym_row_redispatch_total": float(self.gym_row_redispatches),
            "rollout/max_consecutive_infra_drops": float(self.max_consecutive_infra_drops),
        }
        for key, counts in by_name.items():
            metrics[f"rollout/{key}"] = float(counts.total())
            metrics |= {f"rollout/{key}/{name}": float(count) for name, count in counts.items()}
        return metrics
