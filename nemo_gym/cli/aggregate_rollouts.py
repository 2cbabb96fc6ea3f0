"""`ng_aggregate_rollouts`."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pydantic import Field

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.cli.output import complain, say, say_json
from nemo_gym.client import ServerClient
from nemo_gym.config import GymConfig
from nemo_gym.config.instances import instance_names
from nemo_gym.errors import HeadServerUnreachableError
from nemo_gym.rollout_collection.config import RolloutAggregationConfig
from nemo_gym.rollout_collection.display.end_report import entries_data, metrics_lines
from nemo_gym.rollout_collection.results.aggregate import Aggregation, aggregate_shards, load_shards
from nemo_gym.text_fit import Screen


class AggregateRolloutsConfig(ConfigPaths, RolloutAggregationConfig):
    config_paths: list[str] = Field(default_factory=list)
    """YAML files that define the agents: `[a.yaml,b.yaml]`. Needed only if an environment computes metrics of
    its own and ng_run is not running its servers."""
    json_output: bool = False
    """Print one JSON object instead of text. Other messages go to standard error."""


def run(config: GymConfig, options: AggregateRolloutsConfig) -> int:
    import uvloop

    notice = complain if options.json_output else say
    shards = load_shards(options, notice)
    done = uvloop.run(aggregate_shards(options, shards, partial(_open_client, config), notice))
    if options.json_output:
        say_json(_data(done))
    elif done is not None:
        _show(done)
    return 0


@asynccontextmanager
async def _open_client(config: GymConfig, agents: Sequence[str]) -> AsyncIterator[ServerClient | None]:
    """A client of the running servers if they include all agents, else of servers hosted here."""
    running = _running_servers(config)
    has_all = running is not None and set(agents) <= set(instance_names(running.global_config_dict))
    if config.servers and not has_all:
        from nemo_gym.launch import host_embedded  # a third of the start-up time, and rarely needed

        async with host_embedded(config) as client:
            yield client
    else:
        yield running


def _running_servers(config: GymConfig) -> ServerClient | None:
    try:
        return ServerClient.load_from_global_config(config.head_server)
    except HeadServerUnreachableError:
        return None


def _data(done: Aggregation | None) -> dict[str, Any]:
    if done is None:
        return {"agents": [], "files": {}, "trackers": []}
    files = {"rollouts": done.merged_path, "aggregate_metrics": done.metrics_path}
    return {
        "agents": entries_data(done.entries),
        "files": {what: str(path) for what, path in files.items() if path is not None},
        "trackers": done.tracked,
        "bad_lines": done.bad_lines,
    }


def _show(done: Aggregation) -> None:
    for line in metrics_lines(done.entries, Screen.of(sys.stdout)):
        say(line)
    if done.merged_path is not None:
        say(f"Rollouts: {done.merged_path}")
    say(f"Aggregate metrics: {done.metrics_path}")
    for line in done.tracked:
        say(line)


COMMAND = Command(
    "aggregate_rollouts",
    AggregateRolloutsConfig,
    run,
    "ng_aggregate_rollouts '+input_glob=results/rollouts-rs*.jsonl' +output_jsonl_fpath=results/all.jsonl",
    other_key="+head_server.port=11001",
)
