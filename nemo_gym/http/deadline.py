"""A deadline around a call: what `asyncio.timeout` does, at a third of its cost."""

import asyncio
from types import TracebackType


class Deadline:
    """`with Deadline(5.0):` cancels the block after so long, and raises TimeoutError in its place.

    It stands around every call of every rollout, which is why it is not `asyncio.timeout`. None: no deadline.
    """

    __slots__ = ("_cancelling", "_has_passed", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._has_passed = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "Deadline":
        if self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None, "a deadline is for code that runs in a task"
            self._task = task
            self._cancelling = task.cancelling()
            self._timer = task.get_loop().call_later(max(0.0, self._seconds), self._pass)
        return self

    def _pass(self) -> None:
        self._has_passed = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        # If somebody else cancelled the task too, it is theirs to end.
        if (
            self._has_passed
            and self._task.uncancel() <= self._cancelling
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        ):
            raise TimeoutError(f"no answer in {self._seconds:g} s") from error
