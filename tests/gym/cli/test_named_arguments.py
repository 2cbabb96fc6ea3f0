"""Arguments without names, and `--json`."""

import json
from pathlib import Path

import pytest

from tests.gym.cli.conftest import Ng

RECORD = {"_ng_rollout_index": 0, "agent_ref": {"name": "agent"}, "reward": 1.0}


@pytest.fixture
def files(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b=1.jsonl"):
        lines = [json.dumps({**RECORD, "_ng_task_index": task}) for task in range(3)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "arguments",
    [
        ["a.jsonl", "./b=1.jsonl", "--json"],
        ["--json", "a.jsonl", "./b=1.jsonl"],
        ["--skip_bad_lines", "a.jsonl", "--metric", "reward", "./b=1.jsonl", "--json_output"],
        ["--skip-bad-lines", "true", "a.jsonl", "--b_fpath", "b=1.jsonl", "+json_output=true"],
        ["+a_fpath=a.jsonl", "+b_fpath='b=1.jsonl'", "--json"],
    ],
)
def test_positional_arguments_may_be_anywhere(ng: Ng, arguments: list[str]) -> None:
    done = ng("compare", *arguments)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["agents"][0]["metric"]["tasks"] == 3


@pytest.mark.usefixtures("files")
def test_error_names_the_extra_argument(ng: Ng) -> None:
    done = ng("compare", "a.jsonl", "a.jsonl", "c.jsonl")
    done.assert_complains("'c.jsonl'", "ng compare <a_fpath> <b_fpath>")


def test_command_without_positional_arguments_refuses_them(ng: Ng) -> None:
    ng("version", "a.jsonl").assert_complains("has no `=`")


@pytest.mark.parametrize("command", ["version", "compare"])
def test_help_describes_the_json_abbreviation(ng: Ng, command: str) -> None:
    assert "--json is short for +json_output=true." in ng(command, "--help").out
