"""Waits for a condition in the event loop of the caller."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait until the condition is true. After `timeout_s`, when the test hangs, TimeoutError is raised."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - for conditions that set no event
            await asyncio.sleep(0.001)
