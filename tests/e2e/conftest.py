"""Fixtures shared by the tests of whole collections."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.collecting import Adder, CollectionRuns


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[CollectionRuns]:
    """A folder in which twelve rollouts can be collected."""
    adder = Adder()
    with ScriptedEndpoint(adder) as endpoint:
        yield CollectionRuns(tmp_path, endpoint, adder, 12)
