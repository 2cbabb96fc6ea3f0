import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.gym.cli.conftest import Ng

TORN = '{"_ng_task_index": 2, "_ng_roll'


def line(task: int, **fields: Any) -> str:
    record = {
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
        "agent_ref": {"name": "adder"},
        "responses_create_params": {"input": "What is 2 + 2?"},
        "response": {"output": [{"type": "message", "role": "assistant", "content": "4"}]},
        "reward": 1.0,
        **fields,
    }
    return json.dumps(record) + "\n"


@pytest.fixture(autouse=True)
def rollouts(tmp_path: Path) -> Path:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(line(0, steps=3) + line(1))
    return path


def test_rollouts_become_a_table_and_are_counted(ng: Ng, tmp_path: Path) -> None:
    done = ng("export", "rollouts.jsonl", "made/of/out.parquet")
    assert (done.code, done.err) == (0, "")
    assert done.out == "Wrote 2 rollouts from rollouts.jsonl to made/of/out.parquet (7 columns).\n"
    assert pq.read_table(tmp_path / "made/of/out.parquet")["steps"].to_pylist() == [3, None]


def test_rollouts_are_restored_unchanged(ng: Ng, tmp_path: Path, rollouts: Path) -> None:
    ng("export", "rollouts.jsonl", "out.parquet")
    done = ng("export", "+input_fpath=out.parquet", "+output_fpath=back.jsonl")
    assert (done.code, done.err) == (0, "")
    assert done.out == "Wrote 2 rollouts from out.parquet to back.jsonl.\n"
    assert (tmp_path / "back.jsonl").read_bytes() == rollouts.read_bytes()


def test_from_jsonl_to_jsonl_is_the_older_form(ng: Ng, tmp_path: Path) -> None:
    done = ng("export", "rollouts.jsonl", "older.jsonl")
    assert done.out == "Wrote 2 rollouts from rollouts.jsonl to older.jsonl.\n"
    older = [json.loads(text) for text in (tmp_path / "older.jsonl").read_text().splitlines()]
    assert [record["output"] for record in older] == [[{"role": "assistant", "content": "4"}]] * 2


def test_a_file_without_rollouts_is_a_table_without_rows(ng: Ng, rollouts: Path) -> None:
    rollouts.write_text("")
    done = ng("export", "rollouts.jsonl", "out.parquet")
    assert (done.code, done.out) == (
        0,
        "Wrote 0 rollouts from rollouts.jsonl to out.parquet (5 columns).\n",
    )


def test_bad_lines_are_skipped_and_reported_on_request(ng: Ng, rollouts: Path) -> None:
    rollouts.write_text(line(0) + "nonsense\n" + line(1) + line(0, reward=0.0) + TORN)
    done = ng("export", "rollouts.jsonl", "out.parquet", "+skip_bad_lines=true")
    assert (done.code, done.out) == (
        0,
        "Wrote 2 rollouts from rollouts.jsonl to out.parquet (6 columns).\n",
    )
    head, *skipped = done.err.splitlines()
    assert head == "warning: 3 lines skipped:"
    assert [text.split(": ")[0].strip() for text in skipped] == [f"rollouts.jsonl:{n}" for n in (2, 4, 5)]
    assert "repeats rollout 0:0 of line 1" in skipped[1]


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (line(0) + TORN, "rollouts.jsonl:2: the last line is incomplete"),
        (line(0) + line(1) + line(0), "rollouts.jsonl:3: repeats rollout 0:0 of line 1"),
    ],
)
def test_bad_line_is_one_error_and_nothing_is_written(
    ng: Ng, tmp_path: Path, rollouts: Path, content: str, expected: str, output: str
) -> None:
    rollouts.write_text(content)
    ng("export", "rollouts.jsonl", output).assert_complains(expected, "+skip_bad_lines=true")
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_json_column_can_be_omitted(ng: Ng, tmp_path: Path) -> None:
    done = ng("export", "rollouts.jsonl", "out.parquet", "+include_json=false")
    assert done.out.endswith("(6 columns).\n")
    ng("export", "out.parquet", "back.jsonl").assert_complains("rollout_json", "+include_json=false")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["input_fpath", "output_fpath"]),
        (("rollouts.jsonl",), ["output_fpath"]),
        (("rollouts.jsonl", "out.parquet", "more.parquet"), ["too many arguments"]),
        (("rollouts.jsonl", "out.csv"), ["out.csv", ".parquet or .jsonl"]),
        (("rollouts.jsonl", "rollouts.jsonl"), ["same file"]),
        (("gone.jsonl", "out.parquet"), ["gone.jsonl", "No such file"]),
        (("rollouts.jsonl", "out.parquet", "+limit=3"), ["limit: unknown; ng_export has these settings: +"]),
    ],
)
def test_wrong_arguments_are_one_error(ng: Ng, arguments: tuple[str, ...], expected: list[str]) -> None:
    ng("export", *arguments).assert_complains(*expected)
