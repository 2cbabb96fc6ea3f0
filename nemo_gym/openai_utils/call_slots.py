"""Limits the concurrent calls to an endpoint. The wait for a slot does not count as time of the rollout."""

import asyncio
from types import TracebackType

from nemo_gym.activity import current_activity


class CallSlots:
    """`async with slots:` around a call: at most `limit` at once, first come, first served."""

    def __init__(self, limit: int) -> None:
        self._semaphore = asyncio.Semaphore(limit)

    async def __aenter__(self) -> None:
        activity = current_activity.get()
        if activity is None or not self._semaphore.locked():
            await self._semaphore.acquire()
            return
        activity.begin_wait()  # calls that hold the slots may wait for an endpoint that is down
        try:
            await self._semaphore.acquire()
        finally:
            activity.end_wait(0.0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._semaphore.release()
