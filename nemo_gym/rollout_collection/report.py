"""The end of a run, in lines for people."""

import json
from collections.abc import Iterator
from pathlib import Path

from nemo_gym.path_utils import (
    aggregate_metrics_path_for,
    failures_path_for,
    manifest_path_for,
    materialized_path_for,
)
from nemo_gym.rollout_collection.collection import Collected

RESUME_HINT = "The same command with +resume_from_cache=true runs what is missing."


def report(collected: Collected) -> list[str]:
    """Key metrics, the ledger with what went wrong, the files, and what to do next."""
    ledger = collected.ledger
    lines = key_metrics_lines(collected.key_metrics or {})
    if collected.stopped_by is not None:
        lines.append(f"Stopped early: {collected.stopped_by}.")
    lines.append(f"Result: {ledger}")
    lines += [f"  {cause}" for cause in ledger.worst()]
    lines += [f"{what}: {path}" for what, path in _files(collected) if path.exists()]
    if not ledger.is_complete:
        can_resume = ledger.succeeded + ledger.left_alone.total() < ledger.planned
        lines.append(f"Not all rollouts succeeded. {RESUME_HINT if can_resume else ''}".rstrip())
    return lines


def key_metrics_lines(key_metrics: dict[str, dict[str, object]]) -> list[str]:
    """The key metrics of each agent, as indented JSON."""
    return [
        line
        for agent, metrics in key_metrics.items()
        for line in (f"Key metrics of {agent}:", json.dumps(metrics, indent=2))
    ]


def _files(collected: Collected) -> Iterator[tuple[str, Path]]:
    output = collected.output
    yield "Materialized inputs", materialized_path_for(output)
    yield "Rollouts", output
    yield "Failures" if collected.ledger.failed else "Failures of earlier runs", failures_path_for(output)
    if collected.key_metrics is not None:
        yield "Aggregate metrics", aggregate_metrics_path_for(output)
    yield "Manifest", manifest_path_for(output)
