"""What concerns all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)  # a slow example says that something else runs
settings.load_profile("shared machine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where what needs torch is left out, it is not imported either: torch need not be there."""
    if collection_path.suffix == ".py" and "not torch" in config.option.markexpr:
        return "\npytestmark = pytest.mark.torch\n" in collection_path.read_text() or None
    return None
