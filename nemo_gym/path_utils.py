"""Names of the files beside a rollouts file."""

from pathlib import Path


def failures_path_for(output_path: str | Path) -> Path:
    """Where the rollouts that failed in the end are recorded."""
    path = Path(output_path)
    return path.with_name(f"{path.stem}_failures.jsonl")
