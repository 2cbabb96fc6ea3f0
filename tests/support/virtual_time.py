"""An event loop whose clock jumps: nothing waits, and every duration is exact.

For code without network or threads: time passes only when no callback is ready.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result of a coroutine, and how many seconds it would have taken."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(coroutine)
        return result, runner.get_loop().time()
