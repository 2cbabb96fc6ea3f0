"""Deadlines: a cheaper `asyncio.timeout`.

Every call of every rollout has a deadline, and there are only a few different timeouts. Deadlines with the
same timeout expire in the order in which they started, so they share one timer of the event loop.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

_TICK_S = 0.001
"""The precision of an event loop's clock."""


class Deadline:
    """`with Deadline(5.0):` cancels the block after 5 seconds and raises TimeoutError. None: no deadline.

    `waited_s` returns a time that only grows; what it grows by within the block does not count.
    """

    __slots__ = (
        "_cancelling",
        "_queue",
        "_task",
        "_waited_before_s",
        "_waited_s",
        "ends",
        "has_passed",
        "seconds",
    )

    def __init__(self, seconds: float | None, waited_s: Callable[[], float] | None = None) -> None:
        self.seconds = seconds
        self._waited_s = waited_s
        self._queue: _Queue | None = None
        self.ends = 0.0
        """On the clock of the event loop."""
        self.has_passed = False

    def __enter__(self) -> "Deadline":
        if self.seconds is not None:
            task = asyncio.current_task()
            assert task is not None, "a deadline is for code that runs in a task"
            self._task: asyncio.Task[Any] = task
            self._cancelling = task.cancelling()
            loop, seconds = task.get_loop(), max(0.0, self.seconds)
            self.ends = loop.time() + seconds
            if self._waited_s is not None:
                self._waited_before_s = self._waited_s()
            self._wait_in(_queues.get((loop, seconds)) or _Queue(loop, seconds))
        return self

    def _wait_in(self, queue: "_Queue") -> None:
        self._queue = queue
        queue.add(self)

    def expire(self) -> None:
        """Cancel the block, or wait again for the time that does not count."""
        if self._waited_s is not None:
            waited_s = self._waited_s()
            left_s, self._waited_before_s = waited_s - self._waited_before_s, waited_s
            if left_s > _TICK_S:
                loop = self._task.get_loop()
                self.ends = loop.time() + left_s
                self._wait_in(_Queue(loop, left_s))
                return
        self.has_passed = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._queue is None:
            return
        if not self.has_passed:
            self._queue.remove(self)
        # If the task was also cancelled by other code, the CancelledError propagates.
        elif (
            self._task.uncancel() <= self._cancelling
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        ):
            raise TimeoutError(f"no response within {self.seconds:g} s") from error


class _Queue:
    """The deadlines with one timeout in one event loop, the oldest first. Removed when it is empty."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._key = (loop, seconds)
        self._running: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        _queues[self._key] = self

    def add(self, deadline: Deadline) -> None:
        self._running[deadline] = None
        if self._timer is None:
            self._arm()

    def remove(self, deadline: Deadline) -> None:
        del self._running[deadline]
        if not self._running:
            self._close()

    def _arm(self) -> None:
        """Wake up when the oldest deadline expires; it may have been removed by then."""
        self._timer = self._loop.call_at(next(iter(self._running)).ends, self._wake)

    def _wake(self) -> None:
        now = self._loop.time() + _TICK_S
        while self._running and (oldest := next(iter(self._running))).ends <= now:
            del self._running[oldest]
            oldest.expire()
        if self._running:
            self._arm()
        else:
            self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        del _queues[self._key]


_queues: dict[tuple[asyncio.AbstractEventLoop, float], _Queue] = {}
"""The queues that contain deadlines."""
