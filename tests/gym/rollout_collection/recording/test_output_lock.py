"""An output has one writer, under whatever name it is opened and whatever happens to the files beside it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_gym.errors import OutputInUseError
from nemo_gym.journal import set_aside, write_whole
from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.recording.output_lock import exclusive
from nemo_gym.rollout_collection.recording.status_file import StatusFile, read_status


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def is_locked(output: Path) -> bool:
    """Whether another writer is refused, in this process and in another one."""
    code = "import sys\nfrom pathlib import Path\n"
    code += "from nemo_gym.rollout_collection.recording.output_lock import exclusive\n"
    code += "with exclusive(Path(sys.argv[1])): pass\n"
    other = subprocess.run([sys.executable, "-c", code, str(output)], capture_output=True, text=True)
    refused = other.returncode != 0 and "OutputInUseError" in other.stderr
    assert refused or other.returncode == 0, other.stderr
    try:
        with exclusive(output):
            refused_here = False
    except OutputInUseError:
        refused_here = True
    assert refused == refused_here
    return refused


@pytest.mark.parametrize("exists", [False, True])
def test_output_is_locked_until_its_writer_ends(output: Path, exists: bool) -> None:
    if exists:
        output.write_text("{}\n")
    with exclusive(output):
        assert is_locked(output)
    assert not is_locked(output)
    assert output.exists() == exists


def test_links_to_an_output_are_locked_too(output: Path) -> None:
    output.write_text("{}\n")
    symbolic, hard = output.with_name("symbolic.jsonl"), output.with_name("hard.jsonl")
    symbolic.symlink_to(output.name)
    hard.hardlink_to(output)
    for mine in (output, symbolic, hard):
        with exclusive(mine):
            assert all(map(is_locked, (output, symbolic, hard)))


def test_writer_in_this_process_is_named(output: Path) -> None:
    with exclusive(output), StatusFile(output), pytest.raises(OutputInUseError) as refused, exclusive(output):
        pass
    assert str(refused.value).startswith(f"this process is collecting into {output}; wait until")


def test_lock_follows_an_output_that_was_renamed_or_rewritten(output: Path) -> None:
    output.write_text("{}\n")
    with exclusive(output) as lock:
        set_aside([output])
        lock.follow()
        assert output.exists() and is_locked(output)
        write_whole(output, [b"{}\n"])
        assert not is_locked(output)
        lock.follow()
        assert is_locked(output)


def test_writer_that_was_slower_is_refused(output: Path) -> None:
    output.write_text("{}\n")
    with exclusive(output) as slower:
        set_aside([output])
        with exclusive(output):
            with pytest.raises(OutputInUseError):
                slower.follow()
            assert is_locked(output)


@contextmanager
def child() -> Iterator[int]:
    """A process forked from this one, which runs until it is killed."""
    pid = os.fork()
    if not pid:
        signal.pause()
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_forked_process_does_not_keep_the_lock(output: Path) -> None:
    with exclusive(output), StatusFile(output):
        output.write_text("{}\n")
        with child():
            assert is_locked(output)
            assert read_status(status_path_for(output)) is not None
        # The end of the child does not end the lock of its parent.
        assert is_locked(output)
        outliving = child()
        outliving.__enter__()
    try:
        assert not is_locked(output)
    finally:
        outliving.__exit__(None, None, None)


def test_forked_process_that_leaves_the_blocks_of_its_parent_changes_nothing(output: Path) -> None:
    pid = 0
    with exclusive(output), StatusFile(output) as status:
        output.write_text("{}\n")
        pid = os.fork()
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert status_path_for(output).exists()
            assert is_locked(output)
            status.write(done=1)
            content = read_status(status_path_for(output))
            assert content is not None and content["done"] == 1
        else:
            status.write(done=2)
    if not pid:
        os._exit(0)


def test_reader_of_the_output_does_not_end_the_lock(output: Path) -> None:
    output.write_text("{}\n")
    with exclusive(output):
        output.read_text()
        os.close(os.open(output, os.O_RDWR))
        assert is_locked(output)


def test_status_file_does_not_matter_to_the_lock(output: Path) -> None:
    path = status_path_for(output)
    with exclusive(output), StatusFile(output) as status:
        path.unlink()
        assert is_locked(output)
        status.write(done=7)
        assert (read_status(path) or {})["done"] == 7, "it is written again"
    assert not path.exists()


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "folder", "named pipe"])
def test_whatever_has_the_name_of_the_status_file_is_not_written(output: Path, kind: str) -> None:
    path, precious = status_path_for(output), output.with_name("precious")
    precious.write_text("precious")

    def put() -> None:
        path.unlink(missing_ok=True)
        if kind == "symbolic link":
            path.symlink_to(precious)
        elif kind == "hard link":
            path.hardlink_to(precious)
        elif kind == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)

    put()
    with exclusive(output), StatusFile(output) as status:
        assert is_locked(output)
        status.write(done=1)
        if kind != "folder":
            put()
            status.write(done=2)
            assert (read_status(path) or {})["done"] == 2
    assert precious.read_text() == "precious"
    assert path.exists() == (kind == "folder")
    assert not list(output.parent.glob(".*"))


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[1]", b"[" * 100_000, b'{"pid": [1]}'])
def test_any_content_of_a_status_file_can_be_read(output: Path, content: bytes) -> None:
    with exclusive(output), StatusFile(output):
        status_path_for(output).write_bytes(content)
        found = read_status(status_path_for(output))
        assert found is None or isinstance(found, dict)
        assert is_locked(output)


def test_unlocked_status_file_is_a_leftover(output: Path) -> None:
    status_path_for(output).write_text('{"pid": 1}')
    assert read_status(status_path_for(output)) is None
