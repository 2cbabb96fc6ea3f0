"""What is tracked, what a tracker does, and the order in which it does it.

Invariant: a tracker that was opened is finished, also when something fails in between.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

KEY_METRICS = "key_metrics"


@dataclass(frozen=True)
class AgentFigures:
    """The aggregate metrics of one agent."""

    agent_metrics: Mapping[str, Any]
    key_metrics: Mapping[str, Any]


@dataclass(frozen=True)
class TrackedRun:
    """What trackers are told of a run."""

    agents: Mapping[str, AgentFigures]
    """By the agent's name."""
    rollouts: Iterable[bytes] | None
    """JSON lines without their ends, sorted by key; iterated more than once. None: not to be uploaded."""
    rollouts_path: Path | None
    """The file that holds the rollouts, where there is one."""
    settings: Mapping[str, Any]
    """How the run was made, with secrets masked."""

    def metrics(self) -> Iterator[tuple[str, Any]]:
        """Every metric under the name that all trackers build on."""
        for agent, figures in self.agents.items():
            for name, value in figures.agent_metrics.items():
                yield f"{agent}/{name}", value
            for name, value in figures.key_metrics.items():
                yield f"{KEY_METRICS}/{agent}/{name}", value


class Tracker(Protocol):
    """One run at one service. Every method blocks, and raises when the service does not take its part."""

    def log(self, run: TrackedRun) -> None:
        """Send the settings and the metrics."""

    def upload(self, rollouts: Iterable[bytes], path: Path | None) -> None:
        """Send the rollouts: the lines, or the file that holds them."""

    def finish(self, ok: bool) -> str:
        """End the run as finished or failed; gives where it can be found."""


def track(open_tracker: Callable[[], Tracker], run: TrackedRun) -> str:
    """Send a run to one tracker; gives where it can be found."""
    tracker = open_tracker()
    try:
        tracker.log(run)
        if run.rollouts is not None:
            tracker.upload(run.rollouts, run.rollouts_path)
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            tracker.finish(ok=False)
        raise
    return tracker.finish(ok=True)
