"""Metrics of shards: rollouts that were collected in parts, merged into one file."""

import asyncio
import glob
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from nemo_gym.client import ServerClient
from nemo_gym.errors import ConfigError, HeadServerUnreachableError, InputError
from nemo_gym.journal import make_parent, new_file, read_objects, set_aside
from nemo_gym.metrics import Columns
from nemo_gym.path_utils import aggregate_metrics_path_for, manifest_path_for, materialized_path_for
from nemo_gym.python_terms import errors_in_python
from nemo_gym.records import SKIP_HINT, BadLines, agent_of
from nemo_gym.rollout_collection.config import RolloutAggregationConfig
from nemo_gym.rollout_collection.recording.manifest import Manifest
from nemo_gym.rollout_collection.recording.output_lock import exclusive
from nemo_gym.rollout_collection.results.agent_metrics import AgentRollouts, Entry, write_aggregate_metrics
from nemo_gym.rollout_collection.results.older_shards import KeyedCopies
from nemo_gym.rollout_collection.results.shards import Duplicates, ShardLines, Shards
from nemo_gym.rollout_collection.results.tracking import track_run
from nemo_gym.trackers import warn_early

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
"""Suffixes of files beside a rollouts file that hold no rollouts."""
_MOST_NAMED = 10
_SET_ASIDE = (".bak", ".torn")
"""Suffixes of files that a later run has replaced or could not use."""

Notice = Callable[[str], None]
"""Reports to the user what is done with the files."""
OpenClient = Callable[[Sequence[str]], AbstractAsyncContextManager[ServerClient | None]]
"""A client of servers that have these agents; None if there are none."""


@dataclass(frozen=True)
class Aggregation:
    """The result of an aggregation."""

    metrics_path: Path
    merged_path: Path | None
    entries: list[Entry]
    """The metrics of each agent."""
    tracked: list[str]
    """Messages from the trackers."""
    bad_lines: int
    """Lines that were skipped."""


class RolloutAggregationHelper(BaseModel):
    """Computes the metrics of rollouts in several files."""

    async def run_from_config(
        self, config: RolloutAggregationConfig, client: ServerClient | None = None
    ) -> Path | None:
        """Merge the shards and write their metrics; returns the path of the metrics, None without rollouts.

        Without a client it uses the servers that are open around it, or those of a head server.
        """
        with errors_in_python():
            if threading.active_count() == 1:  # then several processes can read large files
                shards = load_shards(config, logger.info)
            else:
                shards = await asyncio.to_thread(load_shards, config, logger.info)
            if client is None:
                client = await asyncio.to_thread(_client_around)
            done = await aggregate_shards(config, shards, lambda _: nullcontext(client), logger.info)
        return done.metrics_path if done is not None else None


def load_shards(config: RolloutAggregationConfig, notice: Notice) -> Shards:
    """Find and measure all rollouts. Blocks. Several processes read large files if no other thread runs."""
    for text in warn_early(config):
        notice(text)
    copies = KeyedCopies.of(find_shards(config, notice))
    if (about := copies.notice()) is not None:
        notice(about)
    shards = Shards(copies.paths, BadLines(config.skip_bad_lines), at_end=copies.remove)
    try:
        shards.load()
        if shards.duplicates.repeated:
            raise _repeated(shards)
    except BaseException:
        shards.close()
        raise
    for text in (*_duplicate_lines(shards.duplicates), *shards.bad_lines.warning_lines()):
        notice(text)
    return shards


async def aggregate_shards(
    config: RolloutAggregationConfig, shards: Shards, open_client: OpenClient, notice: Notice
) -> Aggregation | None:
    """Merge the shards, then compute the metrics; None if the shards are empty."""
    output = Path(config.output_jsonl_fpath)
    with shards:
        if not len(shards):
            notice("The shards contain no rollouts; nothing was written.")
            return None
        missing = missing_by_agent(shards)
        agents = {
            agent: AgentRollouts(columns, partial(shards.records, agent), _planned(agent, columns, missing))
            for agent, columns in shards.columns.items()
        }
        make_parent(output)
        if config.merge_shards:
            await asyncio.to_thread(_merge, shards, output, notice)
        metrics_path = aggregate_metrics_path_for(output)
        async with open_client(list(agents)) as client:
            entries = await write_aggregate_metrics(metrics_path, agents, client)
        lines = ShardLines(shards) if config.upload_rollouts_to_wandb else None
        merged = output if config.merge_shards else None
        tracked = await track_run(config, config.model_dump(), entries, lines, merged)
    return Aggregation(metrics_path, merged, entries, tracked, shards.bad_lines.count)


def missing_by_agent(shards: Shards) -> Counter[str] | None:
    """How many rollouts of each agent are missing from the shards; None if that is not known."""
    missing: Counter[str] = Counter()
    if shards.duplicates.copies:
        return None  # a copy may stand in for a missing rollout
    for path, found in zip(shards.paths, shards.found_by_agent, strict=True):
        planned = _planned_by_agent(path)
        if not planned:
            return None
        missing.update({agent: max(0, count - found[agent]) for agent, count in planned.items()})
    return missing


def _planned_by_agent(shard: Path) -> dict[str, int]:
    """From the manifest of the run, else from its materialized inputs; empty if there is neither."""
    manifest = Manifest.load(manifest_path_for(shard))
    planned = manifest.planned_by_agent() if manifest is not None else {}
    materialized = materialized_path_for(shard)
    if planned or not materialized.is_file():
        return planned
    try:
        return dict(Counter(agent_of(row) for _, row in read_objects(materialized)))
    except InputError:
        return {}


def _planned(agent: str, columns: Columns, missing: Counter[str] | None) -> int | None:
    return None if missing is None else len(columns) + missing[agent]


def find_shards(config: RolloutAggregationConfig, notice: Notice) -> list[Path]:
    """The files that match the glob patterns and contain rollouts."""
    matches = [Path(path) for path in _expand_input_glob(config.input_glob)]
    found = [path for path in matches if may_hold_rollouts(path)]
    for pattern in _patterns(config.input_glob):
        if not glob.glob(pattern, recursive=True):
            notice(f"warning: no file matches {pattern}")
    output = Path(config.output_jsonl_fpath)
    shards = [path for path in found if not (output.exists() and path.samefile(output))]
    if len(shards) < len(found):
        if not shards and not config.merge_shards:
            shards = found  # recompute the metrics of one file: nothing is merged into it
        elif manifest_path_for(output).exists():
            raise ConfigError(
                f"output_jsonl_fpath: {output} is one of the shards (its manifest is beside it); "
                "choose another +output_jsonl_fpath="
            )
        else:
            notice(f"Skipped {output}: it is the merged output itself.")
    if not shards:
        others = f" ({matches[0]} matches, but its name is not that of a rollouts file)" if matches else ""
        raise ConfigError(
            f"no rollouts files match input_glob {config.input_glob!r} in {Path.cwd()}{others}; set "
            "input_glob to match the shards, and choose an output_jsonl_fpath that is not one of them"
        )
    notice("\n".join([f"Shards ({len(shards)}):", *(f"  {path}" for path in shards)]))
    return shards


def may_hold_rollouts(path: Path) -> bool:
    """Whether it is a file, and not one that a run writes beside its rollouts."""
    is_unfinished = path.name.startswith(".") and path.suffix == ".tmp"
    return path.is_file() and not is_unfinished and not path.name.endswith((*_COMPANIONS, *_SET_ASIDE))


def _expand_input_glob(input_glob: str) -> list[str]:
    """The paths that match the comma-separated patterns, each once."""
    paths: dict[str, str] = {}
    for pattern in _patterns(input_glob):
        for path in sorted(glob.glob(pattern, recursive=True)):
            paths.setdefault(os.path.abspath(path), path)
    return list(paths.values())


def _patterns(input_glob: str) -> list[str]:
    return [pattern for part in input_glob.split(",") if (pattern := part.strip())]


def _client_around() -> ServerClient | None:
    try:
        return ServerClient.load_from_global_config()
    except HeadServerUnreachableError:
        return None


def _repeated(shards: Shards) -> InputError:
    """The error for keys that occur twice in one file. In separate files they belong to separate runs."""
    lines, count = shards.repeated_lines(_MOST_NAMED), len(shards.duplicates.repeated)
    if count > len(lines):
        lines.append(f"… and {count - len(lines)} more")
    return InputError("\n".join([*lines, f"Remove one of each, {SKIP_HINT}"]))


def _duplicate_lines(duplicates: Duplicates) -> list[str]:
    texts = []
    if duplicates.copies:
        texts.append(f"Identical copies of rollouts in the shards, not counted again: {duplicates.copies}.")
    if duplicates.renumbered_tasks:
        texts.append(
            "Different rollouts have the same task and rollout index, as in separate runs of one input. All "
            f"are kept and renumbered in the order of the shards. Tasks: {duplicates.renumbered_tasks}."
        )
    return texts


def _merge(shards: Shards, output: Path, notice: Notice) -> None:
    """Write all rollouts into one file; an earlier file is kept under another name."""
    with exclusive(output), new_file(output) as file:
        file.writelines(shards.lines())
        moved = set_aside([output])
    for kept in moved:
        notice(f"{output} existed already; it was renamed to {kept}.")
