"""A run that is ready to start."""

from collections import Counter
from dataclasses import dataclass, field

from nemo_gym.rollout_collection.planning.remaining import RemainingWork
from nemo_gym.rollout_collection.recording.manifest import Manifest
from nemo_gym.rollout_collection.recording.scan import Found


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    work: RemainingWork
    manifest: Manifest
    is_resumed: bool = False
    found: Found = field(default_factory=Found)
    """The rollouts in the output: those of earlier runs, and later those of this run as well."""

    def planned_by_agent(self) -> Counter[str]:
        """Rollouts per agent that should be in the output in the end. Valid until the first is recorded."""
        found = Counter({agent: len(columns) for agent, columns in self.found.columns.items()})
        return found + Counter(self.work.to_run_by_agent) + Counter(self.work.skipped_by_agent)
