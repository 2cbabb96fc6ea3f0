"""Rollouts exported as Parquet or in the older form and restored, and read with common libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_gym import __version__
from nemo_gym.analysis.rollout_export import export_rollouts
from nemo_gym.errors import ConfigError, InputError
from nemo_gym.records import BadLines
from tests.gym.analysis.exporting import CHAT, TRANSCRIPT, exported, older, rollout, write
from tests.support.commands import ROOT


def test_a_row_is_a_rollout_with_its_ids_numbers_texts_and_conversation(tmp_path: Path) -> None:
    table = exported(
        tmp_path, rollout(3, 1, is_right=True, steps=4, expected_answer="4"), rollout(0, 0, steps=None)
    )
    item = pa.struct(
        [(name, pa.string()) for name in ("type", "role", "text", "name", "arguments", "call_id")]
    )
    assert {field.name: field.type for field in table.schema if field.name != "transcript"} == {
        "task_index": pa.int64(),
        "rollout_index": pa.int64(),
        "agent": pa.string(),
        "reward": pa.float64(),
        "is_right": pa.bool_(),
        "steps": pa.int64(),
        "input_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "expected_answer": pa.string(),
        "rollout_json": pa.string(),
    }
    assert table.schema.field("transcript").type.value_type == item
    assert table.column_names[:3] == ["task_index", "rollout_index", "agent"]
    assert table.column_names[-2:] == ["transcript", "rollout_json"]
    rows = table.drop_columns(["transcript", "rollout_json"]).to_pylist()
    common = {"agent": "adder", "reward": 1.0, "input_tokens": 20, "output_tokens": 7}
    assert rows == [
        {"task_index": 3, "rollout_index": 1, "is_right": True, "steps": 4, "expected_answer": "4", **common},
        {
            "task_index": 0,
            "rollout_index": 0,
            "is_right": None,
            "steps": None,
            "expected_answer": None,
            **common,
        },
    ]


def test_the_file_says_which_version_wrote_it_and_is_compressed(tmp_path: Path) -> None:
    exported(tmp_path, rollout())
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert file.schema_arrow.metadata[b"nemo_gym_version"] == __version__.encode()
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("values", "kind", "cells"),
    [
        ([True, False], pa.bool_(), [True, False]),
        ([True, 3], pa.int64(), [1, 3]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([2**63 - 1, -(2**63)], pa.int64(), [2**63 - 1, -(2**63)]),
        ([1, 2**63], pa.float64(), [1.0, 2.0**63]),
        ([1, 2**200], pa.float64(), [1.0, 2.0**200]),
        ([1, 10**400], pa.float64(), [1.0, None]),
        ([0.5, float("nan"), float("inf"), None], pa.float64(), [0.5, None, None, None]),
        ([float("nan")], pa.float64(), [None]),
        ([2, "two", [2], {}], pa.int64(), [2, None, None, None]),
        (["a", None, "ü 中 😀 \0"], pa.string(), ["a", None, "ü 中 😀 \0"]),
    ],
)
def test_a_column_has_the_narrowest_type_that_holds_its_numbers(
    tmp_path: Path, values: list[Any], kind: pa.DataType, cells: list[Any]
) -> None:
    table = exported(tmp_path, *(rollout(task, score=value) for task, value in enumerate(values)))
    assert table.schema.field("score").type == kind
    assert table["score"].to_pylist() == cells


@pytest.mark.parametrize("values", [["a", ["b"]], [None, None], [{"a": 1}], [[1, 2]]])
def test_field_with_mixed_types_is_not_a_column(tmp_path: Path, values: list[Any]) -> None:
    table = exported(tmp_path, *(rollout(task, extra=value) for task, value in enumerate(values)))
    assert "extra" not in table.column_names
    assert [json.loads(line).get("extra") for line in table["rollout_json"].to_pylist()] == values


def test_field_of_the_rollout_replaces_a_token_count_of_the_same_name(tmp_path: Path) -> None:
    table = exported(tmp_path, rollout(0, input_tokens=1.5), rollout(1), rollout(2, input_tokens=None))
    assert table["input_tokens"].to_pylist() == [1.5, 20.0, None]


def test_fields_named_like_our_columns_get_a_suffix(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "agent": 1,
        "agent_field": 2,
        "transcript": "t",
        "rollout_json": 3.5,
        "task_index": 9,
        "": 5,
    }
    table = exported(tmp_path, rollout(7, **fields))
    row = table.to_pylist()[0]
    assert (row["task_index"], row["agent"]) == (7, "adder")
    assert row["agent_field"] == 2  # a name that is not taken is unchanged
    assert (row["agent_field_field"], row["transcript_field"], row["rollout_json_field"]) == (1, "t", 3.5)
    assert (row["task_index_field"], row["_field"]) == (9, 5)


def test_half_a_surrogate_pair_is_replaced_in_columns_and_kept_in_the_line(tmp_path: Path) -> None:
    record = rollout(answer="a\ud800b", response={"output": "c\udfffd"}, **{"n\ud800": 1})
    table = exported(tmp_path, rollout(1, answer="ü"), record)
    assert table["answer"].to_pylist() == ["ü", "a\ufffdb"]
    assert table["n\ufffd"].to_pylist() == [None, 1]
    assert table["transcript"].to_pylist()[1][-1]["text"] == "c\ufffdd"
    assert json.loads(table["rollout_json"].to_pylist()[1]) == record


LINES = [
    json.dumps(rollout(0, note="plain")),
    json.dumps(rollout(1, note="\ud800 half", big=2**80), indent=None, separators=(" , ", " : ")),
    json.dumps(rollout(2, note="ü 中 😀", odd=float("nan")), ensure_ascii=False),
    json.dumps(rollout(3))[:-1] + ', "twice": 1, "twice": 2, "digits": 1.000}  \t\r',
    json.dumps(older(task=4, output=CHAT)),
]


def test_rollouts_are_restored_from_parquet_byte_for_byte(tmp_path: Path) -> None:
    source, table, back = write(tmp_path / "in.jsonl", *LINES), tmp_path / "t.parquet", tmp_path / "b.jsonl"
    export_rollouts(source, table)
    assert export_rollouts(table, back) == (5, None)
    assert back.read_bytes() == source.read_bytes()


def test_lines_that_are_not_utf8_are_restored_with_the_same_content(tmp_path: Path) -> None:
    source, table, back = tmp_path / "in.jsonl", tmp_path / "t.parquet", tmp_path / "b.jsonl"
    record = rollout(note="a\ud800b")
    source.write_bytes(json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    export_rollouts(source, table)
    export_rollouts(table, back)
    assert json.loads(back.read_bytes()) == record


def test_the_older_form_is_the_rollout_with_chat_messages_as_output(tmp_path: Path) -> None:
    source, target = write(tmp_path / "in.jsonl", *LINES), tmp_path / "out.jsonl"
    assert export_rollouts(source, target) == (5, None)
    before, after = source.read_bytes().splitlines(), target.read_bytes().splitlines()
    for old, new in zip(before[:-1], after[:-1], strict=True):
        assert new.startswith(old.rstrip()[:-1])  # the original fields are unchanged
        assert json.loads(new)["output"] == CHAT
    assert after[-1] == before[-1]  # is already in the older form


def test_each_turn_of_the_model_is_one_chat_message(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": "x"}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]}
    output = [call, said, said, thought, thought, call, {"role": "user", "content": "go on"}, thought]
    source = write(tmp_path / "in.jsonl", rollout(response={"output": output}))
    export_rollouts(source, tmp_path / "out.jsonl")
    messages = json.loads((tmp_path / "out.jsonl").read_text())["output"]
    assert [sorted(key for key, value in message.items() if value) for message in messages] == [
        ["role", "tool_calls"],
        ["content", "role"],
        ["content", "role"],
        ["reasoning_content", "role"],
        ["reasoning_content", "role", "tool_calls"],
        ["content", "role"],
        ["reasoning_content", "role"],
    ]


def test_older_form_can_be_exported(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", rollout())
    export_rollouts(source, tmp_path / "older.jsonl")
    export_rollouts(tmp_path / "older.jsonl", tmp_path / "out.parquet")
    row = pq.read_table(tmp_path / "out.parquet").to_pylist()[0]
    assert len(row["transcript"]) == len(TRANSCRIPT)
    assert row["reward"] == 1.0


def test_without_rollouts_the_table_has_no_rows(tmp_path: Path) -> None:
    table = exported(tmp_path)
    assert table.column_names == ["task_index", "rollout_index", "agent", "transcript", "rollout_json"]


def test_without_the_json_rollouts_cannot_be_restored(tmp_path: Path) -> None:
    source, target = write(tmp_path / "in.jsonl", rollout()), tmp_path / "out.parquet"
    assert export_rollouts(source, target, include_json=False) == (1, 7)
    assert "rollout_json" not in pq.read_schema(target).names
    with pytest.raises(InputError, match=r"out\.parquet: no column rollout_json"):
        export_rollouts(target, tmp_path / "back.jsonl")
    assert not (tmp_path / "back.jsonl").exists()


TORN = '{"_ng_task_index": 5, "_ng_roll'
BAD_LINES: list[Any] = [rollout(0), TORN, rollout(1), rollout(0, reward=0.0), {"reward": 1.0}, rollout(2)]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([rollout(0), TORN, rollout(1)], r"in\.jsonl:2: not JSON"),
        ([rollout(0), rollout(1), rollout(0)], r"in\.jsonl:3: repeats rollout 0:0 of line 1"),
        ([rollout(0), {"reward": 1.0}], r"in\.jsonl:2: not a rollout"),
    ],
)
def test_bad_line_is_an_error_and_leaves_the_earlier_output(
    tmp_path: Path, ending: str, lines: list[Any], expected: str
) -> None:
    source, target = write(tmp_path / "in.jsonl", *lines), tmp_path / f"out.{ending}"
    target.write_text("as before")
    with pytest.raises(InputError, match=expected):
        export_rollouts(source, target)
    assert target.read_text() == "as before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", target.name]


def test_skipped_bad_lines_are_counted_and_the_rest_is_exported(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", *BAD_LINES)
    source.write_text(source.read_text() + TORN)
    for ending in ("parquet", "jsonl"):
        bad_lines = BadLines(are_skipped=True)
        assert export_rollouts(source, tmp_path / f"out.{ending}", bad_lines).rollouts == 3
        assert bad_lines.count == 4
        assert [text.partition(": ")[0] for text in bad_lines.first] == [
            f"{source}:{n}" for n in (2, 4, 5, 7)
        ]
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["task_index"].to_pylist() == [0, 1, 2]
    assert table["reward"].to_pylist() == [1.0, 1.0, 1.0]


def test_row_groups_keep_the_order_of_the_file(tmp_path: Path) -> None:
    keys = [(task * 7919 % 5000, 0) for task in range(5000)]
    table = exported(tmp_path, *(rollout(*key) for key in keys))
    assert table["task_index"].to_pylist() == [task for task, _ in keys]
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups > 1


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("in.jsonl", "out.csv", r"out\.csv: unknown type \.csv; .* \.parquet or \.jsonl"),
        ("in.json", "out.parquet", r"in\.json: unknown type \.json;"),
        ("in.jsonl", "out", r"unknown type \(none\)"),
        ("in.jsonl", "./in.jsonl", "the same file"),
        ("in.jsonl", "link.jsonl", "the same file"),
        ("in.jsonl", "folder.parquet", "not a regular file"),
        ("in.jsonl", "in.jsonl/out.parquet", "cannot write in.jsonl/out.parquet: File exists"),
        ("gone.jsonl", "out.parquet", r"gone\.jsonl: cannot be read: No such file"),
        ("gone.parquet", "out.jsonl", r"gone\.parquet: no such file"),
        ("a.parquet", "b.parquet", "already a Parquet file"),
        ("not.parquet", "out.jsonl", r"not\.parquet: cannot be read as Parquet"),
        ("cut.parquet", "out.jsonl", r"cut\.parquet: cannot be read as Parquet"),
        ("other.parquet", "out.jsonl", r"other\.parquet: no column rollout_json"),
        ("holes.parquet", "out.jsonl", r"holes\.parquet: row 2 has no rollout_json"),
    ],
)
def test_files_of_the_wrong_format_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", rollout())
    Path("link.jsonl").symlink_to("in.jsonl")
    Path("folder.parquet").mkdir()
    Path("not.parquet").write_text("no table")
    export_rollouts("in.jsonl", "whole.parquet")
    content = Path("whole.parquet").read_bytes()
    Path("cut.parquet").write_bytes(content[: len(content) // 2])
    pq.write_table(pa.table({"rollout_json": [1]}), "other.parquet")
    pq.write_table(pa.table({"rollout_json": ["{}", None]}), "holes.parquet")
    with pytest.raises(ConfigError, match=expected):
        export_rollouts(source, target)
    assert not Path("out.jsonl").exists() and not Path("out.parquet").exists()
    assert Path("in.jsonl").read_text() == json.dumps(rollout()) + "\n"


def test_full_disk_is_one_error_and_leaves_the_earlier_output(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", *(rollout(task, note=os.urandom(2000).hex()) for task in range(200)))
    (tmp_path / "out.parquet").write_text("as before")
    script = """
import resource, signal
from nemo_gym.analysis.rollout_export import export_rollouts
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
export_rollouts("in.jsonl", "out.parquet")
"""
    done = run_python(tmp_path, script)
    assert "ConfigError: cannot write out.parquet: File too large; free disk space" in done.stderr
    assert (tmp_path / "out.parquet").read_text() == "as before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.parquet"]


def test_without_pyarrow_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.jsonl", rollout())
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[export\]'"):
        export_rollouts(source, tmp_path / "out.parquet")
    export_rollouts(source, tmp_path / "out.jsonl")  # does not need pyarrow


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    template = json.dumps(rollout(987654321, note="x" * 8000, tokens=list(range(400)))) + "\n"
    # Not ru_maxrss: it starts at the size of the parent process.
    script = """
from pathlib import Path
from nemo_gym.analysis.rollout_export import export_rollouts
export_rollouts("in.jsonl", "out.parquet")
export_rollouts("out.parquet", "back.jsonl")
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""
    peaks_kb = []
    for count in (4_000, 12_000):
        with (tmp_path / "in.jsonl").open("w") as file:
            file.writelines(template.replace("987654321", str(task)) for task in range(count))
        peaks_kb.append(int(run_python(tmp_path, script).stdout))
    assert peaks_kb[1] - peaks_kb[0] < 44_000, peaks_kb
    assert 8_000 * len(template) > 80_000_000  # the file grew by this much


def run_python(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    full_env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=full_env, capture_output=True, text=True, check=False
    )


READERS = {
    "pandas": """
import pandas
frame = pandas.read_parquet("out.parquet")
print(frame.reward.mean(), len(frame), frame.transcript[0][-1]["text"])
""",
    "polars": """
import polars
frame = polars.read_parquet("out.parquet")
print(frame["reward"].mean(), len(frame), frame["transcript"][0][-1]["text"])
""",
    "duckdb": """
import duckdb
rows = duckdb.sql("SELECT avg(reward), count(*), any_value(transcript[-1].text) FROM 'out.parquet'")
print(*rows.fetchall()[0])
""",
    "datasets": """
import datasets
rows = datasets.load_dataset("parquet", data_files="out.parquet", split="train", cache_dir="cache")
rewards = [reward for reward in rows["reward"] if reward is not None]
print(sum(rewards) / len(rewards), len(rows), rows[0]["transcript"][-1]["text"])
""",
}


@pytest.mark.parametrize("reader", READERS)
def test_common_libraries_can_read_the_parquet_file(tmp_path: Path, reader: str) -> None:
    exported(tmp_path, rollout(0), rollout(1, reward=0.5, note="ü"), rollout(2, reward=None))
    done = run_python(tmp_path, READERS[reader], HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hf"))
    assert (done.returncode, done.stdout) == (0, "0.75 3 4\n"), done.stderr


@pytest.mark.parametrize("reader", READERS)
def test_documented_line_can_read_the_parquet_file(tmp_path: Path, reader: str) -> None:
    documented = (ROOT / "docs/export_rollouts.md").read_text().splitlines()
    (line,) = [line for line in documented if line.startswith(f"{reader}.")]
    export_rollouts(write(tmp_path / "in.jsonl", rollout(0), rollout(1)), tmp_path / "rollouts.parquet")
    script = f"import {reader}\nprint(len({line}))"
    done = run_python(tmp_path, script, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hf"))
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


OLDEST = {
    "reward": 1.0,
    "output": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
}


def test_old_rollouts_without_keys_are_exported(tmp_path: Path) -> None:
    table = exported(tmp_path, OLDEST, {**OLDEST, "reward": 0.0})
    assert table.column("task_index").to_pylist() == table.column("agent").to_pylist() == [None, None]
    assert table.column("reward").to_pylist() == [1.0, 0.0]
    assert [item["text"] for item in table.column("transcript").to_pylist()[0]] == ["2 + 2?", "4"]
