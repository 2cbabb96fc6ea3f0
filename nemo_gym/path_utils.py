"""Paths of the files next to a rollouts file."""

from pathlib import Path


def failures_path_for(output_path: str | Path) -> Path:
    """The failures file: rollouts that failed after all attempts."""
    return _beside(output_path, "_failures.jsonl")


def materialized_path_for(output_path: str | Path) -> Path:
    """The materialized inputs: the plan of the run."""
    return _beside(output_path, "_materialized_inputs.jsonl")


def manifest_path_for(output_path: str | Path) -> Path:
    """The manifest: the identity of the run, and its ledger."""
    return _beside(output_path, "_manifest.json")


def aggregate_metrics_path_for(output_path: str | Path) -> Path:
    """The aggregate metrics: the metrics of each agent."""
    return _beside(output_path, "_aggregate_metrics.json")


def reward_profile_path_for(output_path: str | Path) -> Path:
    """The reward profile: the rewards of each task."""
    return _beside(output_path, "_reward_profiling.jsonl")


def agent_metrics_path_for(output_path: str | Path) -> Path:
    """The agent metrics that belong to a reward profile."""
    return _beside(output_path, "_agent_metrics.json")


def status_path_for(output_path: str | Path) -> Path:
    """The status file of a running collection; deleted when the collection ends."""
    return _beside(output_path, "_status.json")


def files_of_run(output_path: str | Path) -> list[Path]:
    """All files of a finished run: the output and the files next to it."""
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
