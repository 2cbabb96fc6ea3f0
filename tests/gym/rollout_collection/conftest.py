"""A folder to collect rollouts in."""

from pathlib import Path

import pytest

from tests.support.scripted_agent import Playground, row


@pytest.fixture
def playground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Playground:
    """Three rows and an agent that plays them, in the working directory."""
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    monkeypatch.delenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", raising=False)
    monkeypatch.chdir(tmp_path)
    made = Playground(tmp_path)
    made.write_input(row("a"), row("b"), row("c"))
    return made
