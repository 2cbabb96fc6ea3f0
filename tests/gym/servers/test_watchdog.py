"""The watchdog reports one task that blocks the event loop, not many tasks that keep it busy."""

import asyncio
import time
from collections.abc import Callable
from types import FunctionType

from nemo_gym.servers.watchdog import BlockedLoop, WatchdogPolicy, watching

POLICY = WatchdogPolicy(check_s=0.02, blocked_s=0.3)


def _computes(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def as_code_of_a_component(function: Callable[[float], None]) -> Callable[[float], None]:
    """The function as it would be in the module of an environment."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {"__name__": "resources_servers.slow.app", "time": time})


computes = as_code_of_a_component(_computes)


async def reports_of(tasks: int, seconds: float) -> list[BlockedLoop]:
    found: list[BlockedLoop] = []

    async def compute() -> None:
        computes(seconds)

    with watching(found.append, POLICY):
        await asyncio.gather(*(compute() for _ in range(tasks)))
    return found


def test_one_task_that_computes_for_long_is_reported() -> None:
    found = asyncio.run(reports_of(1, 1.0))
    assert found
    assert found[0].seconds >= POLICY.blocked_s
    assert "_computes" in found[0].place


def test_many_tasks_that_compute_briefly_are_not_reported() -> None:
    assert asyncio.run(reports_of(100, 0.01)) == []
