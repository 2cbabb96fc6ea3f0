"""What the tests of whole collections share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.collecting import Adder, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Twelve rollouts to be collected."""
    adder = Adder()
    with ScriptedEndpoint(adder) as endpoint:
        yield Runs(tmp_path, endpoint, adder, 12)
