"""Names of the files beside a rollouts file."""

from pathlib import Path


def failures_path_for(output_path: str | Path) -> Path:
    """Where the rollouts that failed in the end are recorded."""
    return _beside(output_path, "_failures.jsonl")


def materialized_path_for(output_path: str | Path) -> Path:
    """Where the rows stand as they are sent to the agents."""
    return _beside(output_path, "_materialized_inputs.jsonl")


def manifest_path_for(output_path: str | Path) -> Path:
    """Where the identity of the run and its ledger stand."""
    return _beside(output_path, "_manifest.json")


def aggregate_metrics_path_for(output_path: str | Path) -> Path:
    """Where the metrics of every agent stand."""
    return _beside(output_path, "_aggregate_metrics.json")


def reward_profile_path_for(output_path: str | Path) -> Path:
    """Where the rewards of each task stand."""
    return _beside(output_path, "_reward_profiling.jsonl")


def agent_metrics_path_for(output_path: str | Path) -> Path:
    """Where a reward profile puts the metrics of every agent."""
    return _beside(output_path, "_agent_metrics.json")


def status_path_for(output_path: str | Path) -> Path:
    """Where a running collection says what it is doing; it is gone when the collection is."""
    return _beside(output_path, "_status.json")


def files_of_run(output_path: str | Path) -> list[Path]:
    """All that a run leaves: the output itself and what stands beside it."""
    beside = (
        materialized_path_for,
        failures_path_for,
        manifest_path_for,
        aggregate_metrics_path_for,
        reward_profile_path_for,
        agent_metrics_path_for,
    )
    return [Path(output_path), *(path_for(output_path) for path_for in beside)]


def _beside(output_path: str | Path, ending: str) -> Path:
    path = Path(output_path)
    return path.with_name(path.stem + ending)
