"""Numbers that rollouts copy from their rows are neither on the screen nor in the key metrics."""

import json
import re
import shutil
from typing import Any

import pytest

from nemo_gym.cli.main import enter
from tests.support.commands import run_command
from tests.support.scripted_agent import Playground, row

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def levels(playground: Playground) -> Playground:
    """Rows with a number, which the agent returns, and another number that it makes."""
    playground.write_input(*(row(str(number), level=number) for number in range(3)))
    for number in range(3):
        playground.set_response(f"{number}:0", steps=number)
    return playground


def entry(playground: Playground, name: str = "rollouts") -> dict[str, Any]:
    (found,) = json.loads(playground.output.with_name(f"{name}_aggregate_metrics.json").read_text())
    assert isinstance(found, dict)
    return found


def means(found: dict[str, Any]) -> set[str]:
    """The fields whose means are key metrics."""
    return {name.split("/")[1] for name in found["key_metrics"]}


def test_copied_numbers_are_in_the_agent_metrics_only(levels: Playground, capsys: Capture) -> None:
    levels.collect()
    assert means(entry(levels)) == {"reward", "steps"}
    assert entry(levels)["agent_metrics"]["mean/level"] == 1.0
    stderr = capsys.readouterr().err
    assert "mean/steps" in stderr and "level" not in stderr
    assert re.search(r"Collecting rollouts: 3/3 .*, steps 1\n", stderr)


def test_copied_numbers_are_recognised_in_worker_processes(levels: Playground) -> None:
    done = run_command(
        "ng_collect_rollouts",
        f"+config_paths=[{','.join(levels.config_paths)}]",
        *(f"+{name}={value}" for name, value in levels.servers.items()),
        *("+hosting=embedded", "+executor=processes", "+num_workers=1", "+agent_name=scripted"),
        *("+input_jsonl_fpath=input.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"),
        cwd=levels.folder,
    )
    assert done.returncode == 0, done.stderr
    assert means(entry(levels)) == {"reward", "steps"}


def test_field_that_one_rollout_has_changed_is_shown(levels: Playground, capsys: Capture) -> None:
    levels.set_response("1:0", level=7)
    levels.collect()
    assert means(entry(levels)) == {"reward", "level", "steps"}
    assert "mean/level" in capsys.readouterr().err


def test_copied_numbers_are_recognised_when_a_run_is_resumed(levels: Playground, capsys: Capture) -> None:
    levels.set_response("1:0", "down", status=503)
    levels.collect()
    levels.reset_responses()
    capsys.readouterr()
    levels.collect(resume_from_cache=True)
    assert means(entry(levels)) == {"reward", "steps"}
    assert "level" not in capsys.readouterr().err
    levels.output.with_name("rollouts_aggregate_metrics.json").unlink()
    levels.collect(resume_from_cache=True)  # nothing remains: all numbers come from the file
    assert means(entry(levels)) == {"reward", "steps"}


def test_aggregation_needs_the_materialized_inputs_to_recognise_them(levels: Playground) -> None:
    levels.collect()
    shutil.copytree(levels.output.parent, levels.folder / "alone")
    (levels.folder / "alone" / "rollouts_materialized_inputs.jsonl").unlink()
    for folder, expected in (("out", {"reward", "steps"}), ("alone", {"reward", "steps", "level"})):
        arguments = [f"+input_glob={folder}/rollouts.jsonl", "+output_jsonl_fpath=out/all.jsonl"]
        with pytest.raises(SystemExit):
            enter("aggregate_rollouts", arguments)
        assert means(entry(levels, "all")) == expected
