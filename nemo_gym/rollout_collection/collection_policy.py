"""The settings of a run that are not part of its configuration."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CollectionPolicy:
    """Set where a run begins: by the command, or by `RolloutCollectionHelper`."""

    roots: tuple[Path, ...]
    """The component roots, in which the input and the prompt are searched for."""
    max_rollout_attempts: int = 3
    """Attempts, across all runs, of a rollout that fails because of its input."""
    heartbeat_s: float = 1.0
    """Time between two syncs, updates of the display and of the status file."""
