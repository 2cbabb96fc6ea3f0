"""The virtual environment that `make` uses, with stand-ins for the interpreters."""

import json
import os
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest

from scripts.uninstall_old_name import is_this_checkout
from tests.support.commands import ROOT


def interpreter(file: Path, version: str) -> Path:
    """A program that reports a version of Python for any arguments."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho {version}\n")
    file.chmod(0o755)
    return file


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`make …` as from a shell: not as a part of a `make` that runs the tests."""
    env = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "PYTHON"}
    }
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["demo", "test", "test-core", "check"])
def test_environment_of_another_python_version_is_refused(tmp_path: Path, target: str) -> None:
    venv = tmp_path / "venv"
    interpreter(venv / "bin/python", "3.11")
    for stamp in (".demo-ready", ".core-ready", ".dev-ready"):
        (venv / stamp).touch()
    asked = interpreter(tmp_path / "python3.12", "3.12")
    done = make(target, f"PYTHON={asked}", f"VENV={venv}")
    assert done.returncode == 2
    refusal = f"{venv} uses Python 3.11, but PYTHON is 3.12: delete {venv}, or set VENV=.venv-3.12\n"
    assert done.stdout == refusal


def test_environment_of_the_same_python_version_is_used(tmp_path: Path) -> None:
    interpreter(tmp_path / "venv/bin/python", "3.12")
    done = make("venv", f"PYTHON={interpreter(tmp_path / 'python3.12', '3.12')}", f"VENV={tmp_path}/venv")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_environment_is_used_whatever_its_version_if_no_python_is_given(tmp_path: Path) -> None:
    interpreter(tmp_path / "venv/bin/python", "3.99")
    assert make("venv", f"VENV={tmp_path}/venv").returncode == 0


def test_python_that_is_too_old_is_refused_before_an_environment_is_created(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make("demo", f"PYTHON={old}", f"VENV={tmp_path}/venv")
    assert done.returncode == 2
    assert done.stdout == "Python 3.11 or later is needed; set PYTHON=<interpreter>\n"
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("origin", "expected"), [(ROOT.as_uri(), True), ("file:///another", False), (None, False)]
)
def test_only_this_checkout_is_uninstalled_under_the_old_name(
    tmp_path: Path, origin: str | None, expected: bool
) -> None:
    metadata = tmp_path / "nemo_gym-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nemo-gym\nVersion: 0.1.0\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps({"url": origin, "dir_info": {"editable": True}}))
    assert is_this_checkout(distributions(name="nemo-gym", path=[str(tmp_path)])) is expected
