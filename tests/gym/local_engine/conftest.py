import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from nemo_gym.local_engine import EngineSettings, LocalEngine, find_weights


class Running:
    """An engine, and the event loop that it belongs to."""

    def __init__(self, settings: EngineSettings) -> None:
        self.runner = asyncio.Runner()
        self.engine = self.runner.run(self._started(settings))

    @staticmethod
    async def _started(settings: EngineSettings) -> LocalEngine:
        engine = LocalEngine(settings)
        await engine.start()
        return engine

    def run(self, work: Callable[[LocalEngine], Awaitable[Any]]) -> Any:
        async def worked() -> Any:
            return await work(self.engine)

        return self.runner.run(worked())

    def close(self) -> None:
        self.runner.run(self.engine.stop(5.0))
        self.runner.close()


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    """One engine for all tests that do it no harm."""
    started = Running(EngineSettings(find_weights(), slots=4, context=512))
    yield started
    started.close()
