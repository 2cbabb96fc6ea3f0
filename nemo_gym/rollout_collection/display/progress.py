"""The progress of a run, as data: counts, rate, means."""

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from nemo_gym.metrics.columns import Columns
from nemo_gym.rollout_collection.execution.executor import ExecutorState
from nemo_gym.rollout_collection.outcome import Outcome, Success
from nemo_gym.rollout_collection.results.collected import Throughput

_WINDOW_S = 60.0
_NOT_SHOWN = frozenset({"input_tokens", "output_tokens", "total_tokens"})


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run."""

    done: int
    total: int
    failed: int
    elapsed_s: float
    per_minute: float
    eta_s: float | None
    tokens_per_s: float
    in_flight: int
    retries: int
    means: dict[str, dict[str, float]]
    """Means of the reward and other numbers, by agent."""
    left: list[tuple[str, int]]
    """The agents with the most remaining rollouts."""
    limits: dict[str, int]
    """Concurrent calls allowed per endpoint, if concurrency is adaptive."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Calls that wait for an endpoint, by cause."""


@dataclass
class Progress:
    """Counts outcomes as they are recorded."""

    total: int
    """Rollouts of the whole run."""
    left_by_agent: Counter[str]
    columns: Mapping[str, Columns]
    started: float = field(default_factory=time.monotonic)
    earlier: int = 0
    """Rollouts that earlier runs have done. They count as done, but not in the rate."""
    done: int = 0
    failed: int = 0
    tokens: float = 0.0
    """Generated ones."""
    input_tokens: float = 0.0
    _points: deque[tuple[float, int, float]] = field(default_factory=deque)
    """Time, done, tokens: samples of the last minute."""

    def __post_init__(self) -> None:
        self.done = self.earlier

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Success):
            self.tokens += outcome.numbers.get("output_tokens", 0.0)
            self.input_tokens += outcome.numbers.get("input_tokens", 0.0)
        elif outcome.is_failed:
            self.failed += 1
        else:
            return  # it has not been run
        self.done += 1
        self.left_by_agent[outcome.agent] -= 1

    def snapshot(self, state: ExecutorState) -> Snapshot:
        now = time.monotonic()
        self._points.append((now, self.done, self.tokens))
        while len(self._points) > 2 and now - self._points[0][0] > _WINDOW_S:
            self._points.popleft()
        then, done, tokens = self._points[0] if len(self._points) > 1 else (self.started, self.earlier, 0.0)
        seconds = max(now - then, 1e-3)
        rate = (self.done - done) / seconds
        left = self.total - self.done
        return Snapshot(
            done=self.done,
            total=self.total,
            failed=self.failed,
            elapsed_s=now - self.started,
            per_minute=rate * 60,
            eta_s=left / rate if rate > 0 else None,
            tokens_per_s=(self.tokens - tokens) / seconds,
            in_flight=state.in_flight,
            retries=state.retries,
            means={agent: _means(columns) for agent, columns in self.columns.items() if len(columns)},
            left=[(agent, count) for agent, count in self.left_by_agent.most_common(3) if count > 0],
            limits=dict(state.limits),
            waiting=state.waiting_calls() if state.in_flight else {},
        )


def throughput(progress: Progress) -> Throughput | None:
    """From the start of the run until now; None if nothing has finished."""
    rollouts = progress.done - progress.earlier
    if not rollouts:
        return None
    seconds = max(time.monotonic() - progress.started, 1e-3)
    return Throughput(seconds, rollouts, progress.input_tokens, progress.tokens)


def _means(columns: Columns) -> dict[str, float]:
    hidden = _NOT_SHOWN | columns.copied_names()
    names = sorted((name for name in columns.names if name not in hidden), key=lambda name: name != "reward")
    means = ((name, columns.mean(name)) for name in names)
    return {name: mean for name, mean in means if mean is not None}
