"""What other programs did to a journal is known from its file alone."""

from pathlib import Path

import pytest

from nemo_gym.journal import Journal
from nemo_gym.rollout_collection.recording.interference import interference


def test_undisturbed_journal_has_no_interference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal(Path("journal")) as journal:
        assert interference(journal) is None
        journal.append(b"{}")
        assert interference(journal) is None
        monkeypatch.chdir("/")  # as an environment may do
        assert interference(journal) is None


def test_interference_says_what_happened(tmp_path: Path) -> None:
    path, other = tmp_path / "journal", tmp_path / "other"
    with Journal(path) as journal:

        def what() -> str:
            found = interference(journal)
            assert found is not None
            return found.what

        journal.append(b"{}")
        path.write_text("")
        assert what() == "was cut from 3 to 0 bytes"
        path.write_text("{}\n{}\n")
        assert what() == "grew by 3 bytes that this run did not write"
        path.rename(other)
        assert what() == f"was renamed to {other}"
        path.write_text("{}\n")
        assert what() == f"was renamed to {other}, and another file has its name now"
        other.unlink()
        assert what() == "was deleted, and another file has its name now"
        path.unlink()
        assert what() == "was deleted"
