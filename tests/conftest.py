"""Settings for all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile(
    "shared machine", deadline=None
)  # examples are slow if other processes use the machine
settings.load_profile("shared machine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m "not torch"`, do not import the modules marked `torch`: torch may not be installed."""
    if collection_path.suffix == ".py" and "not torch" in config.option.markexpr:
        return "\npytestmark = pytest.mark.torch\n" in collection_path.read_text() or None
    return None
