"""What a finished run sends to the trackers."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nemo_gym.config import MASK, mask_secrets
from nemo_gym.rollout_collection.recording.manifest import flattened
from nemo_gym.rollout_collection.results.agent_metrics import Entry
from nemo_gym.trackers import AgentFigures, TrackedRun, TrackerConfig, publish


def tracker_config(config: TrackerConfig, values: Mapping[str, Any]) -> TrackerConfig:
    """Where the run is tracked: its own settings, or those of the servers where it has none."""
    settings = {}
    for name in TrackerConfig.model_fields:
        around = values.get(name)
        settings[name] = getattr(config, name) or (None if around in (None, MASK) else str(around))
    return TrackerConfig(**settings)


async def track_run(
    config: TrackerConfig,
    settings: Mapping[str, Any],
    entries: Iterable[Entry],
    rollouts: Iterable[bytes] | None,
    path: Path | None,
) -> list[str]:
    """Send the metrics, and the rollouts if given, to every tracker; returns one message per tracker."""
    agents = {entry.agent: AgentFigures(entry.agent_metrics, entry.key_metrics) for entry in entries}
    shown = dict(flattened(mask_secrets(settings)))
    return await asyncio.to_thread(publish, config, TrackedRun(agents, rollouts, path, shown))
