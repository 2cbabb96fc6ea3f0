"""The metrics of a run: computed, written beside its output, and sent to the trackers."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from glob import escape
from shlex import join
from typing import Any

from nemo_gym.client import ServerClient
from nemo_gym.metrics import Columns
from nemo_gym.path_utils import aggregate_metrics_path_for
from nemo_gym.records import agent_of
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.recording.manifest import METRICS_WRITTEN, Manifest
from nemo_gym.rollout_collection.recording.rollouts import Rollouts
from nemo_gym.rollout_collection.results.agent_metrics import (
    NO_SERVER,
    AgentRollouts,
    agent_entries,
    fingerprint,
    write_entries,
)
from nemo_gym.rollout_collection.results.collected import Collected
from nemo_gym.rollout_collection.results.tracking import track_run
from nemo_gym.terminal import one_line
from nemo_gym.trackers import TrackerConfig

logger = logging.getLogger(__name__)


def agent_rollouts(
    rollouts: Rollouts, columns: Mapping[str, Columns], planned_by_agent: Mapping[str, int]
) -> dict[str, AgentRollouts]:
    return {
        agent: AgentRollouts(
            columns.get(agent) or Columns(),
            _records_of(agent, rollouts),
            planned=planned_by_agent.get(agent, 0),
        )
        for agent in dict.fromkeys([*columns, *planned_by_agent])
        if agent
    }


def _records_of(agent: str, rollouts: Rollouts) -> Callable[[], Iterator[dict[str, Any]]]:
    return lambda: (record for record in rollouts if agent_of(record) == agent)


async def write_run_metrics(
    collected: Collected,
    agents: Mapping[str, AgentRollouts],
    manifest: Manifest,
    client: ServerClient | None,
) -> None:
    """Compute the metrics and write them; for a stopped run only the default ones, without its servers."""
    is_stopped = collected.stopped_by is not None
    path = aggregate_metrics_path_for(collected.rollouts.place)
    entries = await agent_entries(
        agents, None if is_stopped else client, "the run was stopped" if is_stopped else NO_SERVER
    )
    written = manifest.data.get(METRICS_WRITTEN)
    if written is None or written != fingerprint(path, entries):  # else it would be the same file
        await asyncio.to_thread(write_entries, path, entries)
    collected.entries = entries
    manifest.save(**{METRICS_WRITTEN: fingerprint(path, entries)})


async def track_collected(
    collected: Collected, config: RolloutCollectionConfig, trackers: TrackerConfig, servers: Any
) -> None:
    """Send the metrics to the trackers, and the rollouts if they are to be uploaded."""
    lines = collected.rollouts.lines() if config.upload_rollouts_to_wandb else None
    settings = {**config.model_dump(), "servers": servers}
    collected.tracked = await track_run(trackers, settings, collected.entries or [], lines, collected.output)


def metrics_warning(collected: Collected, error: Exception) -> str:
    logger.debug("metrics", exc_info=error)
    output = collected.output
    settings = [f"+input_glob={escape(str(output))}", f"+output_jsonl_fpath={output}", "+merge_shards=false"]
    again = join(["ng_aggregate_rollouts", *settings])
    reason = one_line(str(error)) or type(error).__name__
    return f"warning: cannot compute the metrics: {reason}; to try again: {again}"
