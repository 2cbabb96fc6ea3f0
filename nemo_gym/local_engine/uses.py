"""How many use something, and when nobody does any more."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Uses:
    """`counted` around each use."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __bool__(self) -> bool:
        return self._count > 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def over(self) -> None:
        """Wait until there is none."""
        await self._none.wait()
