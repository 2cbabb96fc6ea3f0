"""The choice of tests of `make quick`, in repositories made for it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.quick_tests import changed_files, select_tests
from tests.support.commands import ROOT

FILES = {
    "pkg/__init__.py": "",
    "pkg/core.py": "",
    "pkg/front.py": "def load():\n    from pkg.core import value\n",
    "pkg/part/__init__.py": "from .inner import value\n",
    "pkg/part/inner.py": "from ..core import value\n",
    "tests/conftest.py": "",
    "tests/helper.py": "import pkg.front\n",
    "tests/test_core.py": "from pkg import core\n",
    "tests/test_far.py": "import tests.helper\n",
    "tests/test_part.py": "from pkg.part import value\n",
    "tests/test_other.py": "import json\n",
    "tests/e2e/test_run.py": "import pkg.core\n",
    "tests/foreign/resources_servers/theirs/tests/test_app.py": "import pkg.core\n",
    "resources_servers/one/app.py": "",
    "resources_servers/one/configs/one.yaml": "",
    "resources_servers/one/tests/test_app.py": "",
    "resources_servers/two/tests/test_app.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


Choice = Callable[..., list[str]]


@pytest.fixture
def choose(root: Path) -> Choice:
    """The tests for changed files, by name."""
    files = [Path(name) for name in FILES if name.endswith(".py")]
    return lambda *changed: [str(test) for test in select_tests(map(Path, changed), files, root)]


def test_tests_that_reach_a_changed_module_run_nearest_first(choose: Choice) -> None:
    assert choose("pkg/core.py") == ["tests/test_core.py", "tests/test_far.py", "tests/test_part.py"]


def test_only_the_changed_test_runs(choose: Choice) -> None:
    assert choose("tests/test_other.py") == ["tests/test_other.py"]


def test_whole_run_runs_only_if_it_changed(choose: Choice) -> None:
    assert "tests/e2e/test_run.py" not in choose("pkg/core.py")
    assert choose("tests/e2e/test_run.py") == ["tests/e2e/test_run.py"]


@pytest.mark.parametrize("file", ["app.py", "configs/one.yaml"])
def test_any_file_of_a_component_selects_its_tests(choose: Choice, file: str) -> None:
    assert choose(f"resources_servers/one/{file}") == ["resources_servers/one/tests/test_app.py"]


def test_conftest_selects_all_tests_of_its_folder(choose: Choice) -> None:
    chosen = choose("tests/conftest.py")
    assert {"tests/test_core.py", "tests/test_other.py"} <= set(chosen)
    assert "tests/e2e/test_run.py" not in chosen


def test_tests_of_third_party_environments_are_left_to_ours(choose: Choice) -> None:
    for changed in (
        "pkg/core.py",
        "tests/conftest.py",
        "tests/foreign/resources_servers/theirs/tests/test_app.py",
    ):
        assert not any("foreign" in test for test in choose(changed))


def test_files_without_tests_select_none(choose: Choice) -> None:
    assert choose("README.md", "deleted.py") == []


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def test_changes_are_those_of_the_branch_and_of_the_working_tree(root: Path) -> None:
    git(root, "init", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    (root / "tests/helper.py").write_text("import pkg.core\n")
    git(root, "commit", "-am", "second")
    assert changed_files(root) == [Path("tests/helper.py")]  # a clean main: the last commit
    git(root, "checkout", "-b", "work")
    (root / "pkg/core.py").write_text("value = 1\n")
    git(root, "commit", "-am", "third")
    (root / "pkg/front.py").write_text("")
    (root / "pkg/new.py").write_text("")
    assert changed_files(root) == [Path("pkg/core.py"), Path("pkg/front.py"), Path("pkg/new.py")]


def test_changes_without_a_main_branch_are_those_of_the_working_tree(root: Path) -> None:
    git(root, "init", "--initial-branch=work")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    (root / "pkg/core.py").write_text("value = 1\n")
    assert changed_files(root) == [Path("pkg/core.py")]


@pytest.mark.parametrize(("seconds", "passed"), [("0", 0), ("60", 2)])
def test_no_test_starts_after_the_time_limit(tmp_path: Path, seconds: str, passed: int) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    limit = [
        "-p",
        "scripts.stop_after",
        f"--stop-after={seconds}",
        f"--rootdir={tmp_path}",
        "-p",
        "no:cacheprovider",
    ]
    command = [sys.executable, "-m", "pytest", *limit, str(tmp_path / "test_it.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert ("2 tests were not started within 0 s" in done.stdout) is (passed == 0)
    assert ("2 passed" in done.stdout or ".." in done.stdout) is (passed == 2)
