"""Modules can be told apart by name alone, across all packages."""

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("nemo_gym", "nemo_rl", "resources_servers", "responses_api_agents", "responses_api_models")

SHARED = {
    "app": "every component has one (published)",
    "config": "the package, and the public configuration classes of a collection",
    "failure": "the table of nemo_gym; the exceptions of nemo_rl (published)",
    "interface": "every package of nemo_rl has one (published)",
    "nemo_gym": "the package, and the environment of nemo_rl that uses it",
    "reward_profile": "the functions (published), and the command",
    "tracker": "the package, and the interface in it",
    "undocumented": "one in each package",
}
"""Names that several modules have, and why."""


def singular(name: str) -> str:
    """Names that differ only by number count as the same."""
    if name.endswith("ies"):
        return name[:-3] + "y"
    return name.removesuffix("s")


def modules_by_name() -> dict[str, list[str]]:
    found = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            path = file.relative_to(ROOT)
            if "tests" not in path.parts:
                name = file.parent.name if file.name == "__init__.py" else file.stem
                found[singular(name)].append(str(path))
    return found


def test_no_two_modules_have_the_same_name_without_a_reason() -> None:
    found = modules_by_name()
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in SHARED} == {}
    assert [name for name in SHARED if len(found[name]) < 2] == [], "no longer shared"
