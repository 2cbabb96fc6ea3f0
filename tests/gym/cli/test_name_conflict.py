"""Commands warn about the distribution `nemo-gym`, which contains the same import package."""

from pathlib import Path

import pytest

from nemo_gym.cli.name_conflict import is_installed
from tests.support.commands import run_command


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder that `nemo-gym` is installed in."""
    folder = tmp_path / "packages"
    (folder / "nemo_gym-9.0.dist-info").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("command", [("ng", "--help"), ("ng", "version"), ("ng_validate", "--help")])
def test_every_command_warns_once_and_runs(other: Path, command: tuple[str, ...]) -> None:
    done = run_command(*command, env={"PYTHONPATH": str(other)})
    assert done.returncode == 0
    assert done.stdout
    [warning] = done.stderr.splitlines()
    assert warning.startswith("warning: the distribution nemo-gym is also installed in this environment")
    assert warning.endswith("Run: pip uninstall -y nemo-gym handspring && pip install -e .")


def test_own_metadata_and_folders_that_do_not_exist_are_not_a_conflict(other: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "handspring-0.1.0.dist-info").mkdir(parents=True)
    (own / "nemo_gym_plugin-1.0.dist-info").mkdir()
    (own / "nemo_gym").mkdir()
    assert not is_installed([str(own), str(tmp_path / "absent")])
    assert is_installed([str(tmp_path / "absent"), str(own), str(other)])


@pytest.mark.parametrize("name", ["nemo_gym-9.0.egg-info", "nemo_gym.egg-info"])
def test_metadata_of_other_installers_is_recognized(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert is_installed([str(tmp_path)])
