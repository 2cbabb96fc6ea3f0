"""The result of a collection, as data."""

from array import array
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nemo_gym.rollout_collection.recording.ledger import Ledger
from nemo_gym.rollout_collection.recording.rollouts import Rollouts
from nemo_gym.rollout_collection.results.agent_metrics import Entry


@dataclass(frozen=True)
class Throughput:
    """How long a run took and what it did in that time; earlier runs into the same output do not count."""

    seconds: float
    rollouts: int
    """Succeeded and failed ones."""
    input_tokens: float
    output_tokens: float

    @property
    def per_minute(self) -> float:
        return 60 * self.rollouts / self.seconds

    def as_data(self) -> dict[str, float]:
        return {
            **asdict(self),
            "rollouts_per_minute": self.per_minute,
            "input_tokens_per_second": self.input_tokens / self.seconds,
            "output_tokens_per_second": self.output_tokens / self.seconds,
        }


@dataclass
class Collected:
    """The result of a collection."""

    rollouts: Rollouts
    keys: "array[int]"
    """The packed keys of the rollouts, in any order."""
    ledger: Ledger
    output: Path
    stopped_by: str | None = None
    """Why the run was stopped before its end."""
    limit_reached: str | None = None
    """The limit of the run after which no more rollouts were started."""
    throughput: Throughput | None = None
    """None if there was nothing to run."""
    entries: list[Entry] | None = None
    """The metrics of each agent; None if there are none."""
    tracked: list[str] = field(default_factory=list)
    """Messages from the trackers."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about files, other than the rollouts, that could not be written."""
