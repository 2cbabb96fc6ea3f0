"""`ng_status` shows any status file and any response of servers without failing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.cli.status import collection_text
from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.recording import file_lock
from nemo_gym.rollout_collection.recording.foreign_data import counts_of, records_of, tamed
from nemo_gym.rollout_collection.recording.status_file import read_status
from tests.gym.cli.conftest import Ng
from tests.support.commands import free_port

FIELDS = (
    "done",
    "total",
    "failed",
    "pid",
    "host",
    "output",
    "in_flight",
    "per_minute",
    "limits",
    "waiting",
    "oldest",
    "served",
)
NAMES = st.sampled_from([*FIELDS, "rollout", "agent", "seconds", "waits_for", "\x1b[2J"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.just("\x9b\x1b[2J\u202e")
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(NAMES, below, max_size=4),
    max_leaves=12,
)
STATUSES = st.dictionaries(NAMES, VALUES, max_size=12)


def is_safe_to_show(text: str) -> bool:
    return text.replace("\n", "").isprintable()


@given(STATUSES)
def test_any_status_is_shown(status: dict[str, Any]) -> None:
    assert is_safe_to_show(collection_text(status))
    small = tamed(status)
    assert is_safe_to_show(collection_text(small))
    json.dumps(small, allow_nan=False)


@given(VALUES)
def test_any_response_of_a_server_is_read(content: Any) -> None:
    small = tamed(content)
    assert all(isinstance(one, dict) for one in records_of(small, "rollouts"))
    assert sum(counts_of(small, "limits").values()) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff\xfe",
        b"[" * 100_000,
        b'{"oldest": ' + b'{"a":' * 100_000,
        b'{"done": ' + b"9" * 100_000 + b"}",
        b'{"done": 1e999, "total": NaN, "per_minute": -Infinity}',
        b'{"done": 1, "oldest": [1, null, {"rollout": {"a": []}}], "limits": [1], "served": true}',
        b'{"output": "\\ud800\\u001b[2J\\u0000"}',
        b'"text"',
    ],
    ids=range(9),
)
def test_any_content_of_a_status_file_is_survived(ng: Ng, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run_status.json"
    path.write_bytes(data)
    shown_while_locked(ng, path)


def test_status_file_of_100_mb_is_not_read_as_a_whole(ng: Ng, tmp_path: Path) -> None:
    path = tmp_path / "run_status.json"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    shown_while_locked(ng, path)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | STATUSES.map(lambda status: json.dumps(status).encode()))
def test_any_bytes_of_a_status_file_are_survived(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run_status.json"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDWR)
    try:
        file_lock.lock(descriptor)
        status = read_status(path)
    finally:
        file_lock.close(descriptor)
    assert status is None or is_safe_to_show(collection_text(status))


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "link to a device"])
def test_status_file_that_is_not_a_file_is_ignored(ng: Ng, tmp_path: Path, kind: str) -> None:
    path = status_path_for(tmp_path / "run.jsonl")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if "device" in kind else "nowhere")
    done = ng("status", f"+head_server.port={free_port()}")
    assert (done.code, done.out) == (2, "")


def shown_while_locked(ng: Ng, path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        file_lock.lock(descriptor)
        for arguments in ((), ("--json",)):
            done = ng("status", f"+head_server.port={free_port()}", *arguments)
            assert done.code in (0, 2)
            assert "Traceback" not in done.err
            assert is_safe_to_show(done.out) and is_safe_to_show(done.err)
    finally:
        file_lock.close(descriptor)
