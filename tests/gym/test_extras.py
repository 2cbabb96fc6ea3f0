import json
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from nemo_gym import PARENT_DIR, __version__
from nemo_gym.errors import ConfigError
from nemo_gym.extras import install_command, load_extra, missing_extra, reinstall_command
from tests.support.commands import ROOT


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "my wheels" / f"handspring-{__version__}-py3-none-any.whl"
    file.parent.mkdir()
    file.touch()
    return file


@pytest.fixture
def installed(tmp_path: Path, wheel: Path) -> Path:
    """A folder with the metadata that pip writes when it installs the wheel."""
    metadata = tmp_path / "site-packages" / "handspring-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    lines = [
        "Name: handspring",
        "Requires-Dist: uvloop>=0.20; sys_platform != 'win32'",
        "Requires-Dist: a>=1",
    ]
    extras = ["Requires-Dist: b[fast]<3,>=2; extra == 'plots'", "Requires-Dist: c; extra == 'plots'"]
    (metadata / "METADATA").write_text("\n".join([*lines, *extras, "Requires-Dist: d; extra == 'other'"]))
    (metadata / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    return metadata.parent


def test_installed_package_is_loaded() -> None:
    assert load_extra("json.decoder", "any", "reading").JSONDecoder
    assert missing_extra("json.decoder", "any", "reading") is None


def test_missing_package_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(PARENT_DIR)
    message = "drawing needs the package no_such_package; install it with: pip install -e '.[plots]'"
    with pytest.raises(ConfigError) as raised:
        load_extra("no_such_package", "plots", "drawing")
    assert str(raised.value) == message
    assert missing_extra("no_such_package.part", "plots", "drawing") == message


def test_package_with_a_missing_dependency_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"drawing: cannot import half_installed: .*no_such_dependency"):
        load_extra("half_installed", "plots", "drawing")
    assert "half_installed" not in sys.modules


def test_checkout_is_installed_by_its_path_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shlex.split(install_command("plots")) == ["pip", "install", "-e", f"{PARENT_DIR}[plots]"]
    assert shlex.split(reinstall_command() or "") == ["pip", "install", "-e", str(PARENT_DIR)]


def test_extra_of_an_installed_wheel_is_installed_by_its_requirements(installed: Path) -> None:
    assert install_command("plots", installed) == "pip install 'b[fast]<3,>=2' c"


def test_installed_wheel_is_installed_again_from_its_file(installed: Path, wheel: Path) -> None:
    assert shlex.split(reinstall_command(installed) or "") == ["pip", "install", str(wheel)]


def test_wheel_from_the_web_is_installed_again_from_its_address(installed: Path) -> None:
    url = "https://example.org/dist/handspring-0.1.0-py3-none-any.whl"
    [metadata] = installed.glob("*.dist-info")
    (metadata / "direct_url.json").write_text(json.dumps({"url": url}))
    assert reinstall_command(installed) == f"pip install {url}"


def test_no_command_reinstalls_a_wheel_whose_file_is_gone(installed: Path, wheel: Path) -> None:
    """Otherwise a user who runs it has nothing installed in the end."""
    wheel.unlink()
    assert reinstall_command(installed) is None


def test_package_without_metadata_is_installed_from_its_wheel(tmp_path: Path) -> None:
    assert install_command("plots", tmp_path).endswith("-py3-none-any.whl[plots]'")


def test_project_of_a_user_is_not_mistaken_for_a_checkout(installed: Path) -> None:
    (installed / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert install_command("plots", installed) == "pip install 'b[fast]<3,>=2' c"


def test_requirements_of_extras_have_no_markers() -> None:
    """`install_command` expects only the extra as marker."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "handspring"
    for extra, requirements in project["optional-dependencies"].items():
        assert requirements and not [line for line in requirements if ";" in line], extra
