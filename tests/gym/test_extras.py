import sys
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.extras import load_extra, missing_extra


def test_a_package_that_is_there_is_loaded() -> None:
    assert load_extra("json.decoder", "any", "reading").JSONDecoder
    assert missing_extra("json.decoder", "any", "reading") is None


def test_a_package_that_is_missing_comes_with_the_command_that_installs_it() -> None:
    message = "drawing needs the package no_such_package; install it with: pip install 'nemo-gym[plots]'"
    with pytest.raises(ConfigError) as raised:
        load_extra("no_such_package", "plots", "drawing")
    assert str(raised.value) == message
    assert missing_extra("no_such_package.part", "plots", "drawing") == message


def test_a_package_that_lacks_what_it_needs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"drawing: half_installed cannot be loaded: .*no_such_dependency"):
        load_extra("half_installed", "plots", "drawing")
    assert "half_installed" not in sys.modules
