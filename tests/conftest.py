"""Settings for all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)  # other processes slow examples down
settings.load_profile("shared machine")

LONGEST_FILES = [
    "test_grpo.py",
    "test_local_tokens.py",
    "test_demo.py",
    "test_killed_collections.py",
    "test_watched_collections.py",
    "test_tracked_runs.py",
    "test_gym_groups.py",
    "test_unruly_environments.py",
]
"""Start first, so that no process is left with a long file at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first, then the other whole runs, then the rest."""
    ranks = {name: rank for rank, name in enumerate(LONGEST_FILES)}

    def rank(item: pytest.Item) -> int:
        return ranks.get(item.path.name, len(ranks) + (item.path.parent.name != "e2e"))

    items.sort(key=rank)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m "not torch"`, do not import the modules marked `torch`: torch may not be installed."""
    if collection_path.suffix == ".py" and "not torch" in config.option.markexpr:
        return "\npytestmark = pytest.mark.torch\n" in collection_path.read_text() or None
    return None
