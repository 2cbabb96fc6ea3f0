import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from nemo_gym.local_engine import EngineSettings, LocalEngine, find_weights


class Running:
    """An engine and its event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self.runner = asyncio.Runner()
        self.engine = self.runner.run(self._started(settings))

    @staticmethod
    async def _started(settings: EngineSettings) -> LocalEngine:
        engine = LocalEngine(settings)
        await engine.start()
        return engine

    def run(self, work: Callable[[LocalEngine], Awaitable[Any]]) -> Any:
        async def call_work() -> Any:
            return await work(self.engine)

        return self.runner.run(call_work())

    def close(self) -> None:
        self.runner.run(self.engine.stop(5.0))
        self.runner.close()


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    """One engine for all tests that leave it running."""
    started = Running(EngineSettings(find_weights(), slots=4, context=512))
    yield started
    started.close()
