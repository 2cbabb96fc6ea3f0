"""Counts the users of something; the end of the last use can be awaited."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Uses:
    """Each use runs inside `counted`. True while there is at least one."""

    def __init__(self) -> None:
        self._count = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def __bool__(self) -> bool:
        return self._count > 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._count += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._unused.set()

    async def wait_until_unused(self) -> None:
        await self._unused.wait()
