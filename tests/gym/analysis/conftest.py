"""The rollouts files of the two runs that are compared."""

from pathlib import Path

import pytest


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return tmp_path / "b.jsonl"
