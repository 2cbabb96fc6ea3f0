"""The data that is sent to trackers, the interface of a tracker, and the order of its calls.

Invariant: a tracker that was opened is finished, also after a failure.
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
    """The data of a run that trackers get."""

    agents: Mapping[str, AgentFigures]
    """By agent name."""
    rollouts: Iterable[bytes] | None
    """JSON lines without newlines, sorted by key; iterated more than once. None: they are not uploaded."""
    rollouts_path: Path | None
    """The file with the rollouts, if there is one."""
    settings: Mapping[str, Any]
    """The settings of the run, with secrets masked."""

    def metrics(self) -> Iterator[tuple[str, Any]]:
        """The names and values of all metrics, the same for every tracker."""
        for agent, figures in self.agents.items():
            for name, value in figures.agent_metrics.items():
                yield f"{agent}/{name}", value
            for name, value in figures.key_metrics.items():
                yield f"{KEY_METRICS}/{agent}/{name}", value


class Tracker(Protocol):
    """One run at one service. Every method blocks, and raises if the service fails or refuses."""

    def log(self, run: TrackedRun) -> None:
        """Send the settings and the metrics."""

    def upload(self, rollouts: Iterable[bytes], path: Path | None) -> None:
        """Send the rollouts: the lines, or the file with the lines."""

    def finish(self, ok: bool) -> str:
        """End the run as finished or failed; returns where it can be found."""


def track(open_tracker: Callable[[], Tracker], run: TrackedRun) -> str:
    """Send a run to one tracker; returns where it can be found."""
    tracker = open_tracker()
    try:
        tracker.log(run)
        if run.rollouts is not None:
            tracker.upload(run.rollouts, run.rollouts_path)
    except BaseException:
        with suppress(Exception):  # the first error is raised
            tracker.finish(ok=False)
        raise
    return tracker.finish(ok=True)
