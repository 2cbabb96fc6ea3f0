"""`make quick`: lint, types, and the tests nearest to what changed, in under 90 seconds.

A file counts as changed if it differs from the commit where this branch left `main`, committed or not, or if
it is untracked. On a `main` without changes, the files of the last commit count as changed.

A test module runs if it changed or if it reaches a changed module through at most three imports, nearest
first. All tests of a component run if any of its files changed, and all tests of a folder if its conftest.py
changed. Whole runs (`tests/e2e`) run only if their own file changed. The tests in `tests/foreign` belong to
third-party environments and run only through ours. No test starts after 60 seconds.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from scripts.import_graph import ImportGraph

ROOT = Path(__file__).resolve().parent.parent
MAIN_BRANCHES = ("refs/heads/main", "refs/remotes/origin/main")
MAX_DISTANCE = 3
STOP_AFTER_S = 60
COMPONENTS = ("resources_servers", "responses_api_agents", "responses_api_models")
WHOLE_RUNS = Path("tests/e2e")
THIRD_PARTY = Path("tests/foreign")
ALWAYS = (Path("tests/test_layers.py"), Path("tests/gym/test_imports.py"))
"""Quick, and about all modules."""


def changed_files(root: Path = ROOT) -> list[Path]:
    """Their paths, relative to `root`."""
    branches = _git(root, "for-each-ref", "--format=%(refname)", *MAIN_BRANCHES)
    base = _git(root, "merge-base", "HEAD", branches[0])[0] if branches else "HEAD"
    changed = {
        *_git(root, "diff", "--name-only", base),
        *_git(root, "ls-files", "--others", "--exclude-standard"),
    }
    if not changed:
        changed = {*_git(root, "diff", "--name-only", "HEAD~1")}
    return sorted(map(Path, changed))


def select_tests(changed: Iterable[Path], files: Iterable[Path], root: Path = ROOT) -> list[Path]:
    """The test modules among `files` to run for a change, nearest first."""
    changed, files = set(changed), sorted(files)
    distances = ImportGraph(root, files).distances(sorted(changed), MAX_DISTANCE)
    folders = {folder for file in changed if (folder := _tested_folder(file)) is not None}
    for test in files:
        if folders & {test.parent, *test.parents}:
            distances.setdefault(test, 1)
    tests = [file for file in files if file in distances and _is_test(file)]
    wanted = [test for test in tests if test in changed or not test.is_relative_to(WHOLE_RUNS)]
    return sorted(wanted, key=lambda test: (distances[test], test))


def _is_test(file: Path) -> bool:
    return file.name.startswith("test_") and not file.is_relative_to(THIRD_PARTY)


def _tested_folder(file: Path) -> Path | None:
    """The folder whose tests a file concerns as a whole, if there is one."""
    if file.name == "conftest.py":
        return file.parent
    is_in_component = (
        file.parts[0] in COMPONENTS and len(file.parts) > 2 and not file.name.startswith("test_")
    )
    return Path(*file.parts[:2]) if is_in_component else None


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def main() -> int:
    files = _git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    existing = [Path(file) for file in files if (ROOT / file).exists()]
    tests = select_tests(changed_files(), existing)
    print(f"{len(tests)} test modules for this change", flush=True)
    lint = [
        subprocess.run(_python("ruff", *arguments, ".")).returncode
        for arguments in (["check"], ["format", "--check"])
    ]
    types = subprocess.Popen(_python("mypy"), stdout=subprocess.PIPE, text=True)
    plugin = ["-p", "scripts.stop_after", f"--stop-after={STOP_AFTER_S}"]
    chosen = dict.fromkeys(map(str, [*tests, *(test for test in ALWAYS if (ROOT / test).exists())]))
    tested = subprocess.run(_python("pytest", *plugin, *chosen)).returncode
    print(types.communicate()[0], end="")
    return max(*lint, types.returncode, tested)


if __name__ == "__main__":
    sys.exit(main())
