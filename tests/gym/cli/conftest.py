from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nemo_gym.cli.main import enter
from tests.support.components import write_component, write_files


@dataclass(frozen=True)
class Ended:
    """A command that has run."""

    code: int
    out: str
    err: str

    def assert_complains(self, *told: str) -> None:
        """It ended as a user's mistake does: exit code 2, one message."""
        assert self.code == 2, self
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.partition(":")[0].endswith("Error"), self.err
        assert all(text in self.err for text in told), self.err


Ng = Callable[..., Ended]


@pytest.fixture
def ng(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs a command, in an empty folder, as its entry point does."""
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
    """The argument that names a small valid configuration in that folder."""
    write_component(tmp_path, "small")
    write_files(
        tmp_path,
        {
            "small.yaml": """
            config_paths: [resources_servers/small/configs/small.yaml]
            policy_api_key: sk-never-shown
            endpoint: https://user:pass-word@host/v1
            depth: {of: {a: 1, b: 2}}
            """
        },
    )
    return "+config_paths=[small.yaml]"
