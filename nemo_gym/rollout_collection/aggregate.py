"""Metrics over shards: rollouts that were collected one part at a time, merged into one file."""

import asyncio
import glob
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nemo_gym.client import ServerClient
from nemo_gym.errors import ConfigError, HeadServerUnreachableError
from nemo_gym.journal import make_parent, new_file, set_aside
from nemo_gym.metrics import Columns
from nemo_gym.path_utils import aggregate_metrics_path_for, manifest_path_for
from nemo_gym.rollout_collection.agent_metrics import AgentRollouts, write_aggregate_metrics
from nemo_gym.rollout_collection.config import RolloutAggregationConfig
from nemo_gym.rollout_collection.shards import Settled, ShardRollout, Shards, measured

logger = logging.getLogger(__name__)

_COMPANIONS = (
    "_materialized_inputs.jsonl",
    "_failures.jsonl",
    "_reward_profiling.jsonl",
    "_aggregate_metrics.json",
    "_agent_metrics.json",
    "_manifest.json",
    "_status.json",
)
"""Endings of files that stand beside rollouts and hold none."""
_SET_ASIDE = (".bak", ".torn")
"""Endings of what a later run has replaced or could not use."""

Notice = Callable[[str], None]
"""Tells people what is done with their files."""
OpenClient = Callable[[Sequence[str]], AbstractAsyncContextManager[ServerClient | None]]
"""A client of servers that have these agents; None where there are none."""


@dataclass(frozen=True)
class Aggregation:
    """What came of it."""

    metrics_path: Path
    merged_path: Path | None
    key_metrics: dict[str, dict[str, Any]]
    """By agent."""


class RolloutAggregationHelper(BaseModel):
    """Computes the metrics of rollouts that stand in several files."""

    async def run_from_config(
        self, config: RolloutAggregationConfig, client: ServerClient | None = None
    ) -> Path | None:
        """Merge the shards and write their metrics; gives the path of those, None if there are no rollouts.

        Without a client it takes the servers that are open around it, or a running head server's.
        """
        if client is None:
            client = await asyncio.to_thread(_client_around)
        done = await aggregate_shards(config, lambda _: nullcontext(client), logger.info)
        return done.metrics_path if done is not None else None


async def aggregate_shards(
    config: RolloutAggregationConfig, open_client: OpenClient, notice: Notice
) -> Aggregation | None:
    """Merge the shards, then compute the metrics; None if the shards are empty."""
    output = Path(config.output_jsonl_fpath)
    paths = find_shards(config, notice)
    with Shards(paths) as shards:
        for text in _settlement(await asyncio.to_thread(shards.load)):
            notice(text)
        if not len(shards):
            notice("The shards hold no rollouts; nothing is written.")
            return None
        agents = {agent: AgentRollouts(Columns(), partial(shards.records, agent)) for agent in shards.agents}
        rollouts = measured(shards, {name: agent.columns for name, agent in agents.items()})
        make_parent(output)
        if config.merge_shards:
            await asyncio.to_thread(_merge, rollouts, output, notice)
        else:
            await asyncio.to_thread(deque, rollouts, 0)
        metrics_path = aggregate_metrics_path_for(output)
        async with open_client(shards.agents) as client:
            key_metrics = await write_aggregate_metrics(metrics_path, agents, client)
    return Aggregation(metrics_path, output if config.merge_shards else None, key_metrics)


def find_shards(config: RolloutAggregationConfig, notice: Notice) -> list[Path]:
    """The files that the globs match and that hold rollouts."""
    found = [path for path in map(Path, _expand_input_glob(config.input_glob)) if _may_hold_rollouts(path)]
    output = Path(config.output_jsonl_fpath)
    shards = [path for path in found if not (output.exists() and path.samefile(output))]
    if len(shards) < len(found):
        if not shards and not config.merge_shards:
            shards = found  # metrics of one file anew: nothing is merged into it
        elif manifest_path_for(output).exists():
            raise ConfigError(
                f"output_jsonl_fpath: {output} is one of the shards: its manifest stands beside it; "
                "choose another +output_jsonl_fpath="
            )
        else:
            notice(f"Left out: {output}, the merged output itself.")
    if not shards:
        raise ConfigError(
            f"no rollouts files match input_glob {config.input_glob!r} in {Path.cwd()}; name the shards, "
            "and an output_jsonl_fpath that is none of them"
        )
    notice("\n".join([f"Shards ({len(shards)}):", *(f"  {path}" for path in shards)]))
    return shards


def _may_hold_rollouts(path: Path) -> bool:
    """Whether it is a file, and none of those that a run leaves beside its rollouts."""
    is_unfinished = path.name.startswith(".") and path.suffix == ".tmp"
    return path.is_file() and not is_unfinished and not path.name.endswith((*_COMPANIONS, *_SET_ASIDE))


def _expand_input_glob(input_glob: str) -> list[str]:
    """The paths that match: patterns stand between commas; no path twice."""
    paths: dict[str, str] = {}
    for pattern in filter(None, map(str.strip, input_glob.split(","))):
        for path in sorted(glob.glob(pattern, recursive=True)):
            paths.setdefault(os.path.abspath(path), path)
    return list(paths.values())


def _client_around() -> ServerClient | None:
    try:
        return ServerClient.load_from_global_config()
    except HeadServerUnreachableError:
        return None


def _settlement(settled: Settled) -> list[str]:
    texts = []
    if settled.copies:
        texts.append(f"Rollouts that stand in the shards more than once and count once: {settled.copies}.")
    if settled.renumbered_tasks:
        texts.append(
            "Different rollouts have the same task and rollout index, as separate runs of one input do; all "
            f"are kept, numbered anew in the order of the shards. Tasks: {settled.renumbered_tasks}."
        )
    return texts


def _merge(rollouts: Iterable[ShardRollout], output: Path, notice: Notice) -> None:
    """Write all rollouts into one file; an earlier one stays under another name."""
    with new_file(output) as file:
        file.writelines(rollout.line + b"\n" for rollout in rollouts)
        moved = set_aside([output])
    for kept in moved:
        notice(f"{output} was there already; it is now {kept}.")
