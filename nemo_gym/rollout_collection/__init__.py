"""Rollout collection: rows in, rollouts with rewards out, and nothing lost between.

config             the public configuration classes
outcome            planned rollouts and outcomes: what goes into an executor and what comes back
recording/         the files of a run: rollouts, failures, manifest, status and lock
run_servers        which servers a run uses
collection_policy  settings of a run that are not part of its configuration
planning/          rows become materialized inputs; what an earlier run left; the remaining work
execution/         one play, attempts with deadlines and retries, executors, workers and their links
results/           metrics of agents, shards, trackers
display/           progress, reports, dry run
heartbeat          what a run does every second
collection         the whole run: plan, resume, execute, record, measure
helper             the Python interface
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nemo_gym.types import NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, NG_TERMINAL_KEY

if TYPE_CHECKING:
    from nemo_gym.rollout_collection.config import (
        E2ERolloutCollectionConfig,
        RolloutAggregationConfig,
        RolloutCollectionConfig,
        SharedRolloutCollectionConfig,
    )
    from nemo_gym.rollout_collection.helper import RolloutCollectionHelper
    from nemo_gym.rollout_collection.planning.input_rows import _rollout_request_debug_summary
    from nemo_gym.rollout_collection.results.aggregate import RolloutAggregationHelper, _expand_input_glob

__all__ = [
    "NG_FAILURE_CLASS_KEY",
    "NG_NO_PERSIST_KEY",
    "NG_TERMINAL_KEY",
    "E2ERolloutCollectionConfig",
    "RolloutAggregationConfig",
    "RolloutAggregationHelper",
    "RolloutCollectionConfig",
    "RolloutCollectionHelper",
    "SharedRolloutCollectionConfig",
    "_expand_input_glob",
    "_rollout_request_debug_summary",
    "aggregate_rollouts",
    "collect_rollouts",
]

_HOMES = {
    "E2ERolloutCollectionConfig": "config",
    "RolloutAggregationConfig": "config",
    "RolloutAggregationHelper": "results.aggregate",
    "RolloutCollectionConfig": "config",
    "RolloutCollectionHelper": "helper",
    "SharedRolloutCollectionConfig": "config",
    "_expand_input_glob": "results.aggregate",
    "_rollout_request_debug_summary": "planning.input_rows",
}
"""Loaded when first used: code that only reads a file of rollouts needs no servers."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def collect_rollouts() -> None:
    """`ng_collect_rollouts`, published under this name too."""
    _run_command("collect_rollouts")


def aggregate_rollouts() -> None:
    """`ng_aggregate_rollouts`, published under this name too."""
    _run_command("aggregate_rollouts")


def _run_command(name: str) -> None:
    main = import_module("nemo_gym.cli.main")  # above this package: imported only when a command is run
    main.enter(name, sys.argv[1:])
