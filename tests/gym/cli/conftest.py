from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nemo_gym.cli.main import enter
from tests.support.components import write_component, write_files


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    out: str
    err: str

    def assert_complains(self, *expected: str) -> None:
        """Check for a user error: exit code 2 and one message with these texts."""
        assert self.code == 2, self
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.partition(":")[0].endswith("Error"), self.err
        assert all(text in self.err for text in expected), self.err


Ng = Callable[..., Ended]


@pytest.fixture
def ng(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs a command in an empty folder, like its entry point."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)

    def run(name: str, *arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            enter(name, list(arguments))
        written = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, written.out, written.err)

    return run


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Write a small valid configuration; return the argument that names it."""
    write_component(tmp_path, "small")
    write_files(
        tmp_path,
        {
            "small.yaml": """
            config_paths: [resources_servers/small/configs/small.yaml]
            policy_api_key: sk-never-shown
            endpoint: https://user:pass-word@host/v1
            depth: {of: {a: 1, b: 2}}
            words: []
            """
        },
    )
    return "+config_paths=[small.yaml]"
