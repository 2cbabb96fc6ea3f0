"""An output is read completely by any number of processes, also after a run was killed."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.records import unpacked
from nemo_gym.rollout_collection.recording.rollouts import Rollouts
from nemo_gym.rollout_collection.recording.scan import recover_output


def record(task: int, **fields: Any) -> dict[str, Any]:
    ref = {"name": f"agent{task % 2}"}
    return {"reward": task / 7, "agent_ref": ref, "_ng_task_index": task, "_ng_rollout_index": 0, **fields}


@pytest.fixture(params=[1, 2, 7])
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Read the output with this many processes: any size is large enough, and there are enough cores."""
    number: int = request.param
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(number)))
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    return number


def written(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "out.jsonl"
    path.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in records))
    return path


def test_every_rollout_is_found_once_with_its_numbers(tmp_path: Path, processes: int) -> None:
    records = [
        record(task, text="x" * (task * 37 % 500), **({"late": 1.0} if task > 90 else {}))
        for task in range(100)
    ]
    path = written(tmp_path, records)
    found, recovery = recover_output(path, part_bytes=1)
    assert recovery.set_aside == []
    assert [unpacked(name).task for name in found.index.keys] == list(range(100))
    assert Rollouts(path, found.index.sorted_offsets()) == records
    for number in (0, 1):
        columns = found.columns[f"agent{number}"]
        mine = [one for one in records if one["_ng_task_index"] % 2 == number]
        assert list(columns.tasks) == [one["_ng_task_index"] for one in mine]
        assert columns.statistics()["mean/reward"] == pytest.approx(sum(one["reward"] for one in mine) / 50)
        late = [group for group in columns.groups() if "mean/late" in group]
        assert [group["_ng_task_index"] for group in late] == [
            one["_ng_task_index"] for one in mine if "late" in one
        ]


@pytest.mark.parametrize("place", [0, 33, 98, 99])
def test_torn_line_is_set_aside_at_any_position(tmp_path: Path, processes: int, place: int) -> None:
    lines = [orjson.dumps(record(task)) + b"\n" for task in range(100)]
    lines[place] = lines[place][:30] + b"\n"
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"".join(lines))
    found, recovery = recover_output(path, part_bytes=1)
    assert [number for number, _ in recovery.set_aside] == [place + 1]
    left = [task for task in range(100) if task != place]
    assert [one["_ng_task_index"] for one in Rollouts(path, found.index.sorted_offsets())] == left


def test_repeated_rollout_is_set_aside_if_another_process_read_the_first(
    tmp_path: Path, processes: int
) -> None:
    path = written(tmp_path, [*(record(task) for task in range(50)), record(3, reward=9.0)])
    found, recovery = recover_output(path, part_bytes=1)
    assert recovery.set_aside == [(51, "repeats rollout 3:0")]
    assert Rollouts(path, found.index.sorted_offsets())[3]["reward"] == 3 / 7


def test_killed_worker_process_loses_no_rollouts(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, [record(task) for task in range(50)])
    fork = os.fork

    def fork_and_kill() -> int:
        pid = fork()
        if not pid:
            signal.pause()
        os.kill(pid, signal.SIGKILL)
        return pid

    monkeypatch.setattr(os, "fork", fork_and_kill)
    found, recovery = recover_output(path, part_bytes=1)
    assert len(found.index.keys) == 50 and recovery.set_aside == []


def test_process_with_threads_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    path = written(tmp_path, [record(task) for task in range(5)])
    over = threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()
    try:
        found, _ = recover_output(path, part_bytes=1)
    finally:
        over.set()
        waiting.join()
    assert len(found.index.keys) == 5


def test_no_process_and_no_open_file_is_left(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, [record(task) for task in range(50)])
    forked: list[int] = []
    fork = os.fork

    def noting_fork() -> int:
        pid = fork()
        forked.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", noting_fork)
    before = sorted(os.listdir("/proc/self/fd"))
    recover_output(path, part_bytes=1)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert len(forked) == processes - 1
    for pid in forked:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
