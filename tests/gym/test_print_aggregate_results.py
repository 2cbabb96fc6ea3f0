"""scripts/print_aggregate_results.py, as a process."""

import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.metrics import columns_of
from tests.support.commands import ROOT, run_command

SCRIPT = str(ROOT / "scripts/print_aggregate_results.py")


def rollout(reward: float, agent: str | None = "solver", **fields: Any) -> dict[str, Any]:
    ref = {} if agent is None else {"agent_ref": {"name": agent}}
    return {"_ng_task_index": 7, "reward": reward, **ref, **fields}


def write_rollouts(folder: Path, *rollouts: object) -> Path:
    path = folder / "rollouts.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in rollouts), encoding="utf-8")
    return path


def run_script(*arguments: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return run_command(Path(sys.executable).name, SCRIPT, *arguments, cwd=cwd)


def means_of(path: Path) -> Any:
    done = run_script(f"+jsonl_fpath={path}")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_means_are_listed_by_field_name(tmp_path: Path) -> None:
    usage = {"usage": {"input_tokens": 10, "output_tokens": 5}}
    path = write_rollouts(
        tmp_path,
        rollout(1.0, passed=True, answer="42", response=usage),
        rollout(0.5, passed=False, score=math.nan, response=usage),
        rollout(0.0, passed=False, score=3, _ng_seconds=9),
    )
    done = run_script(f"+jsonl_fpath={path}")
    expected = {"reward": 0.5, "input_tokens": 10.0, "output_tokens": 5.0, "passed": 1 / 3, "score": 3.0}
    assert json.loads(done.stdout) == expected
    assert done.stdout == json.dumps(expected, indent=2) + "\n"


def test_means_are_separate_for_each_agent(tmp_path: Path) -> None:
    path = write_rollouts(tmp_path, rollout(1.0, "é"), "", rollout(0.0, "b"), rollout(0.5, "é"))
    path.write_text(path.read_text().replace('""\n', "\n"))
    assert means_of(path) == {"é": {"reward": 0.75}, "b": {"reward": 0.0}}


def test_rollouts_without_an_agent_count_as_one_agent(tmp_path: Path) -> None:
    nameless = [rollout(1.0, None), rollout(0.0, None, agent_ref={}), rollout(0.0, None, agent_ref="x")]
    assert means_of(write_rollouts(tmp_path, *nameless)) == {"reward": 1 / 3}
    with_one = write_rollouts(tmp_path, *nameless, rollout(1.0, "named"))
    assert means_of(with_one) == {"(no agent)": {"reward": 1 / 3}, "named": {"reward": 1.0}}


def test_mean_of_many_values_agrees_with_the_aggregate_metrics(tmp_path: Path) -> None:
    chance = random.Random(0)
    rollouts = [rollout(chance.uniform(-1, 1), big=chance.choice([1e16, 1.0, -1e16])) for _ in range(5000)]
    means = means_of(write_rollouts(tmp_path, *rollouts))
    assert {f"mean/{name}": mean for name, mean in means.items()} == {
        name: value for name, value in columns_of(rollouts).statistics().items() if name.startswith("mean/")
    }
    assert means["reward"] == statistics.fmean(rollout["reward"] for rollout in rollouts)


def test_mean_that_overflows_is_left_out(tmp_path: Path) -> None:
    path = write_rollouts(tmp_path, rollout(1.0, huge=1.7e308), rollout(1.0, huge=1.7e308))
    assert means_of(path) == {"reward": 1.0}


@pytest.mark.parametrize(
    "arguments",
    [
        ("jsonl_fpath=rollouts.jsonl",),
        ("++jsonl_fpath=rollouts.jsonl",),
        ("--jsonl_fpath", "rollouts.jsonl"),
        ("--jsonl-fpath=./rollouts.jsonl",),
    ],
)
def test_every_syntax_of_the_argument_is_accepted(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write_rollouts(tmp_path, rollout(0.25))
    assert json.loads(run_script(*arguments, cwd=tmp_path).stdout) == {"reward": 0.25}


def test_help_names_the_field_and_an_example() -> None:
    done = run_script("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "+jsonl_fpath=  str, required" in done.stdout
    assert "example: python scripts/print_aggregate_results.py +jsonl_fpath=" in done.stdout


@pytest.mark.parametrize(
    ("content", "arguments", "reported"),
    [
        ("", (), ["jsonl_fpath: required"]),
        ("", ("rollouts.jsonl",), ["'rollouts.jsonl' has no `=`"]),
        ("", ("+jsonl_path=x",), ["did you mean +jsonl_fpath=x?"]),
        ("", ("+jsonl_fpath=gone.jsonl",), ["gone.jsonl: cannot be read: No such file"]),
        ("", ("+jsonl_fpath=.",), ["directory"]),
        ("\n \n", ("+jsonl_fpath=rollouts.jsonl",), ["rollouts.jsonl: the file contains no rollouts"]),
        ('{"reward": 1}\n\n{"rew', ("+jsonl_fpath=rollouts.jsonl",), ["rollouts.jsonl:3: not JSON"]),
        ("[1]", ("+jsonl_fpath=rollouts.jsonl",), ["rollouts.jsonl:1: a list, not a JSON object"]),
    ],
)
def test_each_mistake_is_reported_as_one_error(
    tmp_path: Path, content: str, arguments: tuple[str, ...], reported: list[str]
) -> None:
    (tmp_path / "rollouts.jsonl").write_text(content)
    done = run_script(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.partition(":")[0].endswith("Error")
    assert all(text in done.stderr for text in reported), done.stderr
