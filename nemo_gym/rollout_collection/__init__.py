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
scan, rollouts, agent_metrics, tracking, shards, aggregate      what comes out
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nemo_gym.types import NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, NG_TERMINAL_KEY

if TYPE_CHECKING:
    from nemo_gym.rollout_collection.aggregate import RolloutAggregationHelper, _expand_input_glob
    from nemo_gym.rollout_collection.collect import RolloutCollectionHelper
    from nemo_gym.rollout_collection.config import (
        E2ERolloutCollectionConfig,
        RolloutAggregationConfig,
        RolloutCollectionConfig,
        SharedRolloutCollectionConfig,
    )
    from nemo_gym.rollout_collection.plan import _rollout_request_debug_summary

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
    "RolloutAggregationHelper": "aggregate",
    "RolloutCollectionConfig": "config",
    "RolloutCollectionHelper": "collect",
    "SharedRolloutCollectionConfig": "config",
    "_expand_input_glob": "aggregate",
    "_rollout_request_debug_summary": "plan",
}
"""Loaded when they are asked for: who reads a file of rollouts needs no servers."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def collect_rollouts() -> None:
    """`ng_collect_rollouts`, published under this name too."""
    _command_line().ng_collect_rollouts()


def aggregate_rollouts() -> None:
    """`ng_aggregate_rollouts`, published under this name too."""
    _command_line().ng_aggregate_rollouts()


def _command_line() -> Any:
    return import_module("nemo_gym.cli.main")  # above this package: reached only when a command is run
