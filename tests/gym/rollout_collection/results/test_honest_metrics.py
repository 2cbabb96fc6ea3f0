"""Metrics report what limits them: missing rollouts, retries, values that are not finite."""

import json
import re
import shlex
import shutil
from typing import Any

import pytest

from nemo_gym.cli.main import enter
from nemo_gym.metrics import Columns, summarize
from nemo_gym.metrics.headline import headline, warnings
from tests.support.scripted_agent import Playground, records_of, row

Capture = pytest.CaptureFixture[str]


def entry(playground: Playground) -> dict[str, Any]:
    path = playground.output.with_name("rollouts_aggregate_metrics.json")
    (found,) = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def test_complete_run_is_reported_without_notes_in_its_file(playground: Playground, capsys: Capture) -> None:
    playground.collect()
    assert ", 100 % complete" in capsys.readouterr().err
    assert set(entry(playground)) == {"agent_ref", "agent_metrics", "key_metrics", "group_level_metrics"}


def test_missing_rollouts_are_reported_with_bounds_of_the_mean(
    playground: Playground, capsys: Capture
) -> None:
    playground.set_response("1:0", "no rollout", status=400)
    playground.collect(num_repeats=2)
    stderr = capsys.readouterr().err
    assert "(95 % CI 0.29–1.00, 3 tasks × 2), 83 % complete, 0.83–1.00 if all missing fail/pass" in stderr
    assert entry(playground)["coverage"] == {
        "planned": 6,
        "completed": 5,
        "missing": 1,
        "completion_pct": pytest.approx(100 * 5 / 6),
        "mean_reward_if_missing_fail": pytest.approx(5 / 6),
        "mean_reward_if_missing_pass": 1.0,
    }


def test_coverage_is_updated_when_the_missing_rollouts_are_run(playground: Playground) -> None:
    playground.set_response("1:0", "no rollout", status=400)
    playground.collect()
    assert "coverage" in entry(playground)
    playground.reset_responses()
    playground.collect(resume_from_cache=True)
    assert "coverage" not in entry(playground)


def test_agent_without_a_single_rollout_is_not_passed_over(playground: Playground, capsys: Capture) -> None:
    other = Playground(playground.folder, agents=("scripted", "silent"))
    other.write_input(row("a"), row("b", agent_ref={"name": "silent"}))
    other.set_response("1:0", "no rollout", status=400)
    other.collect()
    assert "\nsilent: no rollouts, 0 % complete\n" in capsys.readouterr().err
    path = other.output.with_name("rollouts_aggregate_metrics.json")
    found = {one["agent_ref"]["name"]: one for one in json.loads(path.read_text())}
    assert found["silent"]["coverage"]["missing"] == 1
    assert found["silent"]["agent_metrics"] == {}


def test_rollout_that_took_several_attempts_has_the_number_of_the_attempt(playground: Playground) -> None:
    playground.set_response("1:0", "no rollout", status=503)
    playground.collect()  # both attempts fail
    playground.reset_responses()
    playground.collect(resume_from_cache=True)
    found = {one["_ng_task_index"]: one.get("_ng_attempt_index") for one in records_of(playground.output)}
    assert found == {0: None, 1: 2, 2: None}


def test_warning_about_retried_rollouts_is_repeated_after_a_resume(
    playground: Playground, capsys: Capture
) -> None:
    playground.write_input(*(row(str(number)) for number in range(40)))
    for number in range(20):
        playground.set_response(f"{number}:0", "no rollout", status=503)
    playground.collect(max_attempts=1)
    playground.reset_responses()
    for number in range(20):
        playground.set_response(f"{number}:0", reward=float(number == 0))
    capsys.readouterr()
    playground.collect(resume_from_cache=True)
    flag = "warning: the 20 rollouts that needed a retry score 0.05 on average, the others 1.00"
    assert flag in capsys.readouterr().err
    playground.collect(resume_from_cache=True)  # nothing remains: all numbers come from the file
    assert flag in capsys.readouterr().err


def test_values_that_are_not_finite_are_counted(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", speed=float("inf"))
    playground.set_response("2:0", speed=3.0)
    playground.collect()
    assert "values that are NaN or infinite are left out: speed 1" in capsys.readouterr().err
    metrics = entry(playground)["agent_metrics"]
    assert (metrics["non_finite/speed"], metrics["mean/speed"]) == (1, 3.0)


def test_values_that_are_not_finite_are_still_counted_when_they_are_read_from_the_file(
    playground: Playground, capsys: Capture
) -> None:
    playground.set_response("0:0", speed=float("nan"), size=10**400)
    playground.set_response("1:0", speed=float("inf"))
    playground.collect()
    before = entry(playground)["agent_metrics"]
    playground.output.with_name("rollouts_aggregate_metrics.json").unlink()
    capsys.readouterr()
    playground.collect(resume_from_cache=True)
    assert "values that are NaN or infinite are left out: size 1, speed 2" in capsys.readouterr().err
    assert entry(playground)["agent_metrics"] == before


def test_non_finite_values_of_a_retried_rollout_are_counted(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", "no rollout", status=503)
    playground.collect()
    playground.set_response("1:0", speed=float("nan"))
    playground.collect(resume_from_cache=True)
    capsys.readouterr()
    playground.collect(resume_from_cache=True)  # nothing remains: all numbers come from the file
    assert "values that are NaN or infinite are left out: speed 1" in capsys.readouterr().err


def test_unwritable_metrics_cause_a_warning_and_do_not_fail_the_run(
    playground: Playground, capsys: Capture
) -> None:
    playground.collect()
    metrics = playground.output.with_name("rollouts_aggregate_metrics.json")
    metrics.unlink()
    (metrics / "in the way").mkdir(parents=True)
    playground.write_input(*(row(text) for text in "abcd"))
    capsys.readouterr()
    assert len(playground.collect(resume_from_cache=True)) == 4
    stderr = capsys.readouterr().err
    assert "warning: cannot compute the metrics: " in stderr
    assert "Result: 4 planned = 4 succeeded" in stderr
    assert json.loads(playground.manifest.read_text())["state"] == "complete"


def test_warning_about_metrics_names_a_command_that_computes_them(
    playground: Playground, capsys: Capture
) -> None:
    output = "my out/rollouts.jsonl"
    metrics = playground.folder / "my out" / "rollouts_aggregate_metrics.json"
    playground.collect(output_jsonl_fpath=output, disable_aggregation=True)
    (metrics / "in the way").mkdir(parents=True)
    playground.collect(output_jsonl_fpath=output, resume_from_cache=True)
    [command] = re.findall("to try again: (.*)", capsys.readouterr().err)
    shutil.rmtree(metrics)
    program, *arguments = shlex.split(command)
    with pytest.raises(SystemExit) as ended:
        enter(program.removeprefix("ng_"), arguments)
    assert ended.value.code == 0
    assert len(json.loads(metrics.read_text())) == 1


def test_rollouts_outside_the_plan_do_not_hide_missing_ones(playground: Playground, capsys: Capture) -> None:
    playground.collect(num_repeats=2)
    playground.write_input(row("a"), row("b"), row("d"), row("e"))
    playground.set_response("2:1", "no rollout", status=400)
    playground.set_response("3:0", "no rollout", status=400)
    capsys.readouterr()
    playground.collect(resume_from_cache=True, allow_changed_inputs=True)
    stderr = capsys.readouterr().err
    assert "4 planned = 3 succeeded + 1 failed" in stderr
    assert entry(playground)["coverage"]["missing"] == 1


def test_stopped_run_reports_metrics_of_finished_rollouts(playground: Playground, capsys: Capture) -> None:
    playground.collect()
    metrics = playground.output.with_name("rollouts_aggregate_metrics.json")
    assert metrics.exists()
    playground.write_input(*(row(text) for text in "abcdefgh"))
    for number in range(4, 8):
        playground.set_response(f"{number}:0", "no rollout", status=400)
    playground.collect(resume_from_cache=True, max_failure_rate=1, num_samples_in_parallel=1)
    done = len(records_of(playground.output))
    assert 3 < done < 8
    assert f"{100 * done / 8:.0f} % complete" in capsys.readouterr().err
    assert entry(playground)["coverage"]["missing"] == 8 - done
    assert "the run was stopped" in entry(playground)["note"]


def test_rollouts_without_a_reward_are_reported() -> None:
    columns = Columns()
    for task in range(4):
        columns.add(task, 0, {"reward": 1.0} if task else {})
    summary = summarize("agent", columns)
    assert "(95 % CI 0.29–1.00, 3 tasks, 3 rollouts with a reward)" in headline(summary)
    assert warnings(summary) == ["warning: 1 rollout of 4 has no reward"]
