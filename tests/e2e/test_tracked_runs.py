"""Tracked runs: the commands, the real trackers, and trackers that cannot be reached."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.commands import free_port, run_command
from tests.support.scripted_agent import MODEL, MODEL_CONFIG, row, write_agent

KEY = "local-1234567890123456789012345678901234567890"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    config = write_agent(tmp_path)
    (tmp_path / "input.jsonl").write_text("".join(json.dumps(row(text)) + "\n" for text in "abc"))
    settings = [f"+{key}={value}" for key, value in MODEL.items()]
    return [
        f"+config_paths=[{config},{MODEL_CONFIG}]",
        *settings,
        "+hosting=embedded",
        "+agent_name=scripted",
        "+input_jsonl_fpath=input.jsonl",
        "+output_jsonl_fpath=out/rollouts.jsonl",
    ]


def metrics_in(database: Path) -> dict[str, float]:
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("select key, value from latest_metrics").fetchall())


def test_run_is_tracked_in_mlflow_with_its_rollouts(tmp_path: Path, arguments: list[str]) -> None:
    tracking = ["+mlflow_tracking_uri=sqlite:///mlflow.db", "+mlflow_experiment_name=mine"]
    done = run_command("ng_collect_rollouts", *arguments, *tracking, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\nMLflow: " in done.stdout
    found = metrics_in(tmp_path / "mlflow.db")
    assert found["scripted/mean/reward"] == found["key_metrics/scripted/mean/reward"] == 1.0
    (artifact,) = (tmp_path / "mlruns").rglob("rollouts.jsonl")
    assert artifact.read_bytes() == (tmp_path / "out/rollouts.jsonl").read_bytes()


def test_run_is_tracked_by_wandb_offline_and_no_key_is_written(tmp_path: Path, arguments: list[str]) -> None:
    tracking = ["+wandb_project=mine", "+wandb_name=first", f"+wandb_api_key={KEY}"]
    environment = {"WANDB_MODE": "offline"}
    done = run_command("ng_collect_rollouts", *arguments, *tracking, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "\nW&B: " in done.stdout
    assert KEY not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    (run,) = (path for path in files if path.suffix == ".wandb")
    assert b"key_metrics/scripted/mean/reward" in run.read_bytes()
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_unreachable_tracker_is_a_warning_and_the_run_completes(tmp_path: Path, arguments: list[str]) -> None:
    tracking = [f"+mlflow_tracking_uri=http://127.0.0.1:{free_port()}"]
    done = run_command("ng_collect_rollouts", *arguments, *tracking, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\nwarning: MLflow: " in done.stdout
    assert "send them again with ng_aggregate_rollouts" in done.stdout
    assert len((tmp_path / "out/rollouts.jsonl").read_text().splitlines()) == 3
    again = ["+input_glob=out/rollouts.jsonl", "+output_jsonl_fpath=out/all.jsonl"]
    again += ["+mlflow_tracking_uri=sqlite:///mlflow.db", f"+head_server.port={free_port()}"]
    done = run_command("ng_aggregate_rollouts", *again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert metrics_in(tmp_path / "mlflow.db")["scripted/mean/reward"] == 1.0


def test_json_of_a_run_is_one_object(tmp_path: Path, arguments: list[str]) -> None:
    done = run_command("ng_collect_rollouts", *arguments, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["result"]["succeeded"] == 3
    (agent,) = found["agents"]
    assert agent["reward"]["mean"] == 1.0
    assert agent["coverage"] == {
        "planned": 3,
        "completed": 3,
        "missing": 0,
        "completion_pct": 100.0,
        "mean_reward_if_missing_fail": None,
        "mean_reward_if_missing_pass": None,
    }
    assert found["files"]["rollouts"] == "out/rollouts.jsonl"
