import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nemo_gym.types import SERVER_KINDS


def component_modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in SERVER_KINDS}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; components loaded by the test are unloaded after it."""
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    monkeypatch.chdir(tmp_path)
    before = component_modules()
    yield tmp_path
    for name in component_modules():
        del sys.modules[name]
    sys.modules.update(before)
