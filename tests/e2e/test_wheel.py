"""The wheel: what it ships, and that it works where it is installed."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.commands import ROOT

CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"
MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
POLICY = {"policy_base_url": "http://127.0.0.1:1/v1", "policy_api_key": "no-key", "policy_model_name": "m"}
KINDS = ("resources_servers", "responses_api_agents", "responses_api_models")


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    return next(folder.glob("nemo_gym-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is installed in."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", str(wheel), "--no-deps", "--no-index", "--no-compile", "--target", str(folder))
    return folder


def run(installed: Path, cwd: Path, *command: str) -> str:
    """What an installed script, or Python with the installed package, prints."""
    program = installed / "bin" / command[0]
    full = [sys.executable, *([str(program)] if program.exists() else [command[0]]), *command[1:]]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    env.pop("NEMO_GYM_EXTRA_ROOTS", None)
    done = subprocess.run(full, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shipped_from(folder: Path) -> set[str]:
    """The files of a source folder that belong into the wheel."""
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


def test_installed_package_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    assert f"({installed})" in run(installed, tmp_path, "ng_version")


def test_shipped_components_are_found_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    settings = [f"+{key}={value}" for key, value in POLICY.items()]
    out = run(installed, tmp_path, "ng_validate", f"+config_paths=[{CALCULATOR},{MODEL}]", *settings)
    assert "The configuration is valid: 3 servers" in out


def test_shipped_environment_is_hosted_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
import nemo_gym

async def main():
    async with nemo_gym.open_servers({[CALCULATOR, MODEL]}, {POLICY}) as client:
        answer = await client.post("calculator", "/calculator", json={{"expression": "6*7"}})
        print(await answer.text(), sys.modules["resources_servers.calculator.app"].__file__)

asyncio.run(main())
"""
    answer, file = run(installed, tmp_path, "-c", script).split()
    assert json.loads(answer) == "42"
    assert Path(file).is_relative_to(installed)


def test_new_environment_can_be_written_from_the_installed_package(installed: Path, tmp_path: Path) -> None:
    run(installed, tmp_path, "ng_init_resources_server", "+entrypoint=resources_servers/mine")
    assert (tmp_path / "resources_servers/mine/tests/test_app.py").is_file()
    assert "2 passed" in run(installed, tmp_path, "ng_test", "+entrypoint=resources_servers/mine")
