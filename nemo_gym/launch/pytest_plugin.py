"""A pytest plugin: modules of a component under test import each other as they do when hosted."""

from collections.abc import Generator

import pytest

from nemo_gym.config import component_roots
from nemo_gym.launch.imports import use_component_imports


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests() -> Generator[None, object, object]:
    """Runs before any file of the component is imported."""
    use_component_imports(component_roots())
    return (yield)
