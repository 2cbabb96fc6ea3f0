"""The wheel: its contents, its metadata, and that it works in a new virtual environment."""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import nemo_gym
from tests.support.commands import ROOT

CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"
MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
POLICY = {"policy_base_url": "http://127.0.0.1:1/v1", "policy_api_key": "no-key", "policy_model_name": "m"}
HIDDEN_VARIABLES = {"NEMO_GYM_EXTRA_ROOTS", "PYTHONPATH"}
KINDS = ("resources_servers", "responses_api_agents", "responses_api_models")


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    return next(folder.glob("handspring-*.whl"))


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a new virtual environment with the wheel, installed without a package index.

    The dependencies come from the environment of the tests, except pyarrow, which cannot be imported.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    pip("--python", str(folder), "install", str(wheel), "--no-deps", "--no-index", "--no-compile")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    dependencies = [path for path in sys.path if path.endswith("-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    (packages / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(scripts: Path) -> Path:
    """The folder that the packages of the wheel are in."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(scripts.parent)}))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def end(scripts: Path, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run an installed script, or the installed Python, to its end."""
    env = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
    full = [str(scripts / command[0]), *command[1:]]
    return subprocess.run(full, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def run(scripts: Path, cwd: Path, *command: str) -> str:
    """The output of a command that succeeds."""
    done = end(scripts, cwd, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shipped_from(folder: Path) -> set[str]:
    """The files of a source folder that the wheel must contain."""
    files = (file.relative_to(ROOT) for file in folder.rglob("*") if file.is_file())
    return {str(file) for file in files if not {"tests", "__pycache__"} & set(file.parts)}


def test_wheel_ships_every_file_of_the_package_and_of_the_components(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("nemo_gym", *KINDS):
        wanted = shipped_from(ROOT / folder)
        assert wanted and not wanted - names
    components = {name.rpartition("/app.py")[0] for name in names if name.endswith("/app.py")}
    for component in components:
        assert any(name.startswith(f"{component}/configs/") for name in names), component
        if component.startswith("resources_servers"):
            assert {f"{component}/README.md", f"{component}/data/example.jsonl"} <= names


def test_wheel_ships_no_tests_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if {"tests", "__pycache__", "bench"} & set(name.split("/"))]
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"nemo_gym", "nemo_rl", *KINDS}


def test_metadata_names_the_distribution_and_its_licence(wheel: Path, metadata: Message) -> None:
    assert (metadata["Name"], metadata["License-Expression"]) == ("handspring", "Apache-2.0")
    assert metadata["Version"] == nemo_gym.__version__
    assert metadata.get_all("License-File") == ["LICENSE"]
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_extras_of_the_wheel_do_not_require_the_distribution_itself(metadata: Message) -> None:
    """It is not on the package index."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra") or []) == set(extras)
    assert not [line for line in metadata.get_all("Requires-Dist") or [] if line.startswith("handspring")]


def test_installed_package_is_the_one_that_runs(scripts: Path, installed: Path, tmp_path: Path) -> None:
    assert f"({installed})" in run(scripts, tmp_path, "ng_version")


def test_shipped_components_are_found_where_the_wheel_is_installed(scripts: Path, tmp_path: Path) -> None:
    settings = [f"+{key}={value}" for key, value in POLICY.items()]
    out = run(scripts, tmp_path, "ng_validate", f"+config_paths=[{CALCULATOR},{MODEL}]", *settings)
    assert "The configuration is valid: 3 servers" in out


def test_shipped_environment_is_hosted_where_the_wheel_is_installed(
    scripts: Path, installed: Path, tmp_path: Path
) -> None:
    script = f"""
import asyncio, sys
import nemo_gym

async def main():
    async with nemo_gym.open_servers({[CALCULATOR, MODEL]}, {POLICY}) as client:
        response = await client.post("calculator", "/calculator", json={{"expression": "6*7"}})
        print(await response.text(), sys.modules["resources_servers.calculator.app"].__file__)

asyncio.run(main())
"""
    body, file = run(scripts, tmp_path, "python", "-c", script).split()
    assert json.loads(body) == "42"
    assert Path(file).is_relative_to(installed)


def test_new_environment_can_be_written_from_the_installed_package(scripts: Path, tmp_path: Path) -> None:
    run(scripts, tmp_path, "ng_init_resources_server", "+entrypoint=resources_servers/mine")
    assert (tmp_path / "resources_servers/mine/tests/test_app.py").is_file()
    assert "2 passed" in run(scripts, tmp_path, "ng_test", "+entrypoint=resources_servers/mine")


def test_missing_extra_is_reported_with_a_command_that_works_without_the_wheel(
    scripts: Path, metadata: Message, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    done = end(scripts, tmp_path, "ng_export", "in.jsonl", "out.parquet")
    assert done.returncode == 2, done.stderr
    command = shlex.split(done.stderr.rpartition("install it with: ")[2])
    assert command[:2] == ["pip", "install"]
    lines = metadata.get_all("Requires-Dist") or []
    declared = [line.partition(";")[0] for line in lines if line.endswith("extra == 'export'")]
    assert command[2:] == declared


def test_warning_of_the_other_distribution_names_the_wheel_to_install_again(
    scripts: Path, installed: Path, wheel: Path, tmp_path: Path
) -> None:
    other = installed / "nemo_gym-9.0.dist-info"
    other.mkdir()
    try:
        done = end(scripts, tmp_path, "ng", "--help")
    finally:
        other.rmdir()
    assert done.stderr.endswith(f"Run: pip uninstall -y nemo-gym handspring && pip install {wheel}\n")
