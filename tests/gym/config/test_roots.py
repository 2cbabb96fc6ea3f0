import os
from pathlib import Path

import pytest

from nemo_gym.config import component_roots, find_file, max_rollout_attempts
from nemo_gym.config.roots import INSTALL_ROOT
from nemo_gym.errors import ConfigError


def test_roots_are_extra_roots_then_working_directory_then_install_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    extra = os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "gone"), str(tmp_path / "two"), ""])
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", extra)
    expected = (tmp_path / "one", tmp_path / "two", tmp_path / "here", INSTALL_ROOT)
    assert component_roots() == tuple(path.resolve() for path in expected)


def test_each_root_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    assert component_roots() == (tmp_path.resolve(), INSTALL_ROOT)


def test_install_root_contains_the_package() -> None:
    assert (INSTALL_ROOT / "nemo_gym" / "config").is_dir()


def test_first_root_with_the_file_wins_and_absolute_paths_are_unchanged(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").touch()
    roots = (tmp_path / "one", tmp_path / "two")
    assert find_file("a.yaml", roots) == tmp_path / "one" / "a.yaml"
    assert find_file(tmp_path / "two" / "a.yaml", roots) == tmp_path / "two" / "a.yaml"
    assert find_file("b.yaml", roots) is None
    assert find_file("one", (tmp_path,)) is None


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.yaml").touch()
    assert find_file("~/a.yaml", ()) is None
    assert find_file("~/a.yaml", (Path("/"),)) == tmp_path / "a.yaml"


def test_attempt_limit_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", raising=False)
    assert max_rollout_attempts() == 3
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "5")
    assert max_rollout_attempts() == 5
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "0")
    with pytest.raises(ConfigError, match=r"NEMO_GYM_MAX_ROLLOUT_ATTEMPTS='0'.*>= 1"):
        max_rollout_attempts()
