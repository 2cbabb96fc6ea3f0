"""The examples as a user runs them, with few steps; only complete runs can show that they learn."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
LIMIT_S = 600
"""Long, because the machine may be busy."""


def smoke(variant: str, output: Path) -> dict[str, Any]:
    """The metrics of a run with two small steps."""
    command = [sys.executable, "-m", f"examples.grpo.{variant}", "--smoke", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "step   2/2" in done.stdout
    assert (output / "curve.png").read_bytes().startswith(b"\x89PNG")
    metrics: dict[str, Any] = json.loads((output / "metrics.json").read_text())
    return metrics


def check(metrics: dict[str, Any]) -> None:
    (run,) = metrics["runs"]
    rewards = [step["reward"] for step in run["steps"]]
    assert len(rewards) == 2
    assert all(0.0 <= reward <= 1.0 for reward in rewards)
    assert [step["weight_versions"] for step in run["steps"]] == [[0], [1]]
    heldout = run["heldout"]
    assert heldout["before"]["weight_versions"] == [0]
    assert heldout["after"]["weight_versions"] == [2]
    assert all(0.0 <= heldout[when]["mean"] <= 1.0 for when in ("before", "after"))
    assert heldout["paired_difference"]["value"] == pytest.approx(
        heldout["after"]["mean"] - heldout["before"]["mean"]
    )
    updates = [step["update"] for step in run["steps"] if step["update"]["loss"] is not None]
    assert updates, "no group had rewards that differ: nothing was learnt from"
    assert all(update["logprob_gap_mean"] < 0.01 for update in updates)
    assert all(update["computed_tokens"] < update["sequence_tokens"] for update in updates)


def test_copying_trains_natively_and_writes_metrics_and_curve(tmp_path: Path) -> None:
    metrics = smoke("copying", tmp_path)
    check(metrics)
    assert metrics["runs"][0]["logprob_gap_mean"] < 1e-4


def test_tool_task_trains_through_gym_and_updates_the_weights_of_the_engine(tmp_path: Path) -> None:
    check(smoke("tool_task", tmp_path))
