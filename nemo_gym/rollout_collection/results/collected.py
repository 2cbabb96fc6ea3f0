"""The result of a collection, as data."""

from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.rollout_collection.recording.ledger import Ledger
from nemo_gym.rollout_collection.recording.rollouts import Rollouts
from nemo_gym.rollout_collection.results.agent_metrics import Entry


@dataclass
class Collected:
    """The result of a collection."""

    rollouts: Rollouts
    ledger: Ledger
    output: Path
    stopped_by: str | None = None
    """Why the run was stopped before its end."""
    limit_reached: str | None = None
    """The limit of the run after which no more rollouts were started."""
    entries: list[Entry] | None = None
    """The metrics of each agent; None if there are none."""
    tracked: list[str] = field(default_factory=list)
    """Messages from the trackers."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about files, other than the rollouts, that could not be written."""
