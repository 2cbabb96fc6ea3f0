"""Files of rollouts are read completely, or an error names the bad line."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import InputError
from nemo_gym.records import BadLines, Key, packed, read_rollouts, unpacked
from nemo_gym.rollout_collection.recording.scan import find_rollouts


def record(task: int = 0, index: int = 0, **more: Any) -> dict[str, Any]:
    keys = {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "agent"}}
    return {**keys, "reward": 1.0, **more}


def written(folder: Path, *lines: str) -> Path:
    path = folder / "rollouts.jsonl"
    path.write_text("\n".join(lines))
    return path


GOOD = [json.dumps(record(task)) for task in range(3)]
BAD = {
    "torn": ('{"reward": 1.0, "_ng_ta', "not JSON"),
    "no object": ("[1]", "not a JSON object"),
    "no key": (json.dumps({"reward": 1.0}), "_ng_task_index"),
    "negative": (json.dumps(record(-1)), "_ng_task_index"),
    "no agent": (json.dumps({**record(9), "agent_ref": {}}), "has no agent"),
}


@pytest.mark.parametrize("kind", BAD)
def test_line_that_is_not_a_rollout_is_an_error_with_its_place_and_a_hint(kind: str, tmp_path: Path) -> None:
    line, reason = BAD[kind]
    path = written(tmp_path, *GOOD[:2], line, GOOD[2], "")
    for read in (lambda: list(read_rollouts(path)), lambda: find_rollouts(path, BadLines())):
        with pytest.raises(InputError, match=rf"rollouts\.jsonl:3: .*{reason}.*skip_bad_lines=true"):
            read()


@pytest.mark.parametrize("kind", BAD)
def test_skip_flag_uses_the_rest_and_reports_skipped_lines(kind: str, tmp_path: Path) -> None:
    path = written(
        tmp_path, *GOOD[:2], "", BAD[kind][0], GOOD[2]
    )  # the last line is complete, without a line end
    bad_lines = BadLines(are_skipped=True)
    assert [one.key for one in read_rollouts(path, bad_lines)] == [(0, 0), (1, 0), (2, 0)]
    head, named = bad_lines.warning_lines()
    assert head == "warning: 1 line skipped:"
    assert "rollouts.jsonl:4: " in named
    found = find_rollouts(path, BadLines(are_skipped=True))
    assert [unpacked(key).task for key in found.index.keys] == [0, 1, 2]
    assert found.columns["agent"].metrics()["mean/reward"] == 1.0


def test_error_for_a_torn_last_line_says_how_to_finish_the_run(tmp_path: Path) -> None:
    path = written(tmp_path, *GOOD, '{"reward"')
    with pytest.raises(
        InputError, match=r"rollouts\.jsonl:4: the last line is incomplete.*resume_from_cache=true"
    ):
        list(read_rollouts(path))


def test_duplicate_key_is_reported_with_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, *GOOD, json.dumps(record(1, reward=0.0)), "")
    with pytest.raises(InputError, match=r"rollouts\.jsonl:4: repeats rollout 1:0 of line 2"):
        find_rollouts(path, BadLines())
    found = find_rollouts(path, BadLines(are_skipped=True))
    assert found.columns["agent"].metrics()["mean/reward"] == 1.0  # the first record counts
    assert len(find_rollouts(path, BadLines(), once=False).index.keys) == 4


def test_only_the_first_bad_lines_are_listed(tmp_path: Path) -> None:
    path = written(tmp_path, *["bad"] * 25, GOOD[0])
    bad_lines = BadLines(are_skipped=True)
    assert len(list(read_rollouts(path, bad_lines))) == 1
    lines = bad_lines.warning_lines()
    assert (lines[0], lines[-1], len(lines)) == ("warning: 25 lines skipped:", "  … and 15 more", 12)


def test_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    for read in (lambda path: list(read_rollouts(path)), lambda path: find_rollouts(path, BadLines())):
        with pytest.raises(InputError, match=r"gone\.jsonl: cannot be read: No such file"):
            read(tmp_path / "gone.jsonl")


def test_keys_are_packed_in_their_order() -> None:
    keys = [Key(0, 0), Key(0, 2**31 - 1), Key(1, 0), Key(2**31 - 1, 5)]
    assert sorted(map(packed, keys)) == list(map(packed, keys))
    assert [unpacked(packed(key)) for key in keys] == keys
