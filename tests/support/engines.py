"""The processes of local engines, and what they are doing."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemo_gym.local_engine import LocalEngine
from tests.support.commands import descendants_of

_MARK = b"nemo_gym.local_engine.engine_main"


def engines_below(pid: int) -> list[int]:
    """The engines among the descendants of a process."""
    found = []
    for descendant in descendants_of(pid):
        with suppress(OSError):
            if _MARK in Path(f"/proc/{descendant}/cmdline").read_bytes():
                found.append(descendant)
    return found


async def wait_until_slots_are_busy(engine: LocalEngine, count: int = 1) -> None:
    """Wait until the engine computes this many requests."""
    async with asyncio.timeout(60):
        while True:
            slots: Any = await engine.call("/slots", {})
            if sum(slot["is_processing"] for slot in slots) >= count:
                return
            await asyncio.sleep(0.005)
