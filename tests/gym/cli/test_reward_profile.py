import json
from pathlib import Path
from typing import Any

import pytest

from tests.gym.cli.conftest import Ng

ROLLOUTS = "+rollouts_jsonl_fpath=run.jsonl"
TORN = '{"_ng_task_index": 2, "_ng_roll\n'


def line(task: int, rollout: int, agent: str = "adder", **fields: Any) -> str:
    record = {
        "agent_ref": {"name": agent},
        **fields,
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
    }
    return json.dumps(record) + "\n"


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> Path:
    """Two rollouts per task of five tasks, by two agents; the rollouts of task 4 are missing."""
    agents = ["adder", "adder", "adder", "adder", "other"]
    rewards = {0: [1, 1], 1: [0, 0], 2: [0, 1], 3: [1]}
    inputs = [line(task, index, agents[task]) for task in range(5) for index in range(2)]
    (tmp_path / "run_materialized_inputs.jsonl").write_text("".join(inputs))
    rollouts = [
        line(task, index, agents[task], reward=reward)
        for task, values in rewards.items()
        for index, reward in enumerate(values)
    ]
    (tmp_path / "run.jsonl").write_text("".join(rollouts))
    return tmp_path / "run.jsonl"


def test_profile_is_shown_and_written_beside_the_rollouts(ng: Ng, tmp_path: Path) -> None:
    done = ng("reward_profile", ROLLOUTS, "+allow_partial_rollouts=true")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "7 of 10 rollouts are present, 3 missing.\n"
        "Of 5 tasks, 3 are complete, 1 partial, 1 without rollouts.\n"
        "\n"
        "agent  tasks  rollouts  reward  95 % CI    std\n"
        "─────────────────────────────────────────────────\n"
        "adder  4      7         0.5714  0.01–1.00  0.5345\n"
        "\n"
        "tasks by difficulty  tasks  share\n"
        "─────────────────────────────────\n"
        "never solved         1      25.0%\n"
        "sometimes solved     1      25.0%\n"
        "always solved        2      50.0%\n"
        "\n"
        "Profile of each task: run_reward_profiling.jsonl\n"
        "Metrics of each agent: run_agent_metrics.json\n"
    )
    groups = (tmp_path / "run_reward_profiling.jsonl").read_text().splitlines()
    assert [json.loads(group)["num_rollouts"] for group in groups] == [2, 2, 2, 1]
    assert json.loads((tmp_path / "run_agent_metrics.json").read_text())[0]["mean/reward"] == 4 / 7


def test_complete_run_is_reported_in_one_line_without_a_flag(ng: Ng, run: Path) -> None:
    with run.open("a") as file:
        file.write(line(3, 1, reward=1))
        file.writelines(line(4, index, "other", reward=0.5) for index in range(2))
    done = ng("reward_profile", ROLLOUTS, "+materialized_inputs_jsonl_fpath=run_materialized_inputs.jsonl")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("All 10 rollouts of 5 tasks are present.\n\nagent  tasks")
    assert "other  1      2         0.5     -          0\n" in done.out


def test_json_is_all_that_is_printed(ng: Ng, run: Path) -> None:
    with run.open("a") as file:
        file.write(TORN)
    done = ng("reward_profile", ROLLOUTS, "--allow-partial-rollouts", "--skip_bad_lines=true", "--json")
    assert done.code == 0
    assert done.err.startswith("warning: 1 line skipped:\n  run.jsonl:8: not JSON")
    result = json.loads(done.out)
    assert list(result) == ["summary", "agents", "difficulty", "files"]
    assert result["summary"]["missing_rollouts"] == 3
    (agent,) = result["agents"]
    assert (agent["agent_ref"], agent["num_tasks"], agent["num_rollouts"]) == ({"name": "adder"}, 4, 7)
    assert agent["mean/reward"] == 4 / 7
    assert result["difficulty"] == {
        "never_solved": {"tasks": 1, "share": 0.25},
        "sometimes_solved": {"tasks": 1, "share": 0.25},
        "always_solved": {"tasks": 2, "share": 0.5},
        "without_reward": {"tasks": 0, "share": 0.0},
    }
    assert result["files"] == {
        "reward_profiling": "run_reward_profiling.jsonl",
        "agent_metrics": "run_agent_metrics.json",
    }


def test_run_without_a_rollout_has_no_tables(ng: Ng, run: Path) -> None:
    run.write_text("")
    done = ng("reward_profile", ROLLOUTS, "+allow_partial_rollouts=true")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("0 of 10 rollouts are present, 10 missing.\nOf 5 tasks, 0 are complete, ")
    assert "agent  " not in done.out
    assert (
        json.loads(ng("reward_profile", ROLLOUTS, "+allow_partial_rollouts=true", "--json").out)["agents"]
        == []
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["rollouts_jsonl_fpath"]),
        ((ROLLOUTS,), ["3 of the 10 rollouts", "3:1, 4:0, 4:1;", "+allow_partial_rollouts=true"]),
        (("+rollouts_jsonl_fpath=gone.jsonl",), ["gone.jsonl: no such file"]),
        (
            (ROLLOUTS, "+materialized_inputs_jsonl_fpath=gone.jsonl"),
            ["did you mean +materialized_inputs_jsonl_fpath=run_materialized_inputs.jsonl?"],
        ),
        ((ROLLOUTS, "+limit=3"), ["limit: unknown; ng_reward_profile has these settings: +"]),
        ((ROLLOUTS, "+allow_partial_rollout=true"), ["did you mean +allow_partial_rollouts=true?"]),
    ],
)
def test_mistakes_are_one_error_and_nothing_is_written(
    ng: Ng, tmp_path: Path, arguments: tuple[str, ...], expected: list[str]
) -> None:
    ng("reward_profile", *arguments).assert_complains(*expected)
    assert len(list(tmp_path.iterdir())) == 2


def test_help_describes_every_field(ng: Ng) -> None:
    done = ng("reward_profile", "--help")
    assert done.code == 0
    for name in ("materialized_inputs_jsonl_fpath", "rollouts_jsonl_fpath", "allow_partial_rollouts"):
        assert f"  +{name}=  " in done.out
    assert "--json is short for" in done.out
