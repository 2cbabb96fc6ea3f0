"""Rollout collection: rows in, scored rollouts out, and nothing lost on the way.

config                        the public configuration classes
plan, materialize             rows become materialized inputs, in memory and on disk
prepare, resume, manifest     what an earlier run left, and whether this one may carry it on
servers                       which servers play
attempt, dispatch             one try of a rollout; tries with deadlines and retries
executors, processes, worker  where rollouts run
collection                    the whole run: plan, resume, dispatch, journal, metrics
dry_run                       what a run would do
ledger, progress, display, status, waiting, report      how it gets on
scan, rollouts, agent_metrics, shards, aggregate        what comes out
"""

from importlib import import_module
from typing import Any

from nemo_gym.rollout_collection.aggregate import RolloutAggregationHelper, _expand_input_glob
from nemo_gym.rollout_collection.collect import RolloutCollectionHelper
from nemo_gym.rollout_collection.config import (
    E2ERolloutCollectionConfig,
    RolloutAggregationConfig,
    RolloutCollectionConfig,
    SharedRolloutCollectionConfig,
)
from nemo_gym.rollout_collection.plan import _rollout_request_debug_summary
from nemo_gym.types import NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, NG_TERMINAL_KEY

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


def collect_rollouts() -> None:
    """`ng_collect_rollouts`, published under this name too."""
    _command_line().ng_collect_rollouts()


def aggregate_rollouts() -> None:
    """`ng_aggregate_rollouts`, published under this name too."""
    _command_line().ng_aggregate_rollouts()


def _command_line() -> Any:
    return import_module("nemo_gym.cli.main")  # above this package: reached only when a command is run
