"""The bar of `run_examples`."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_gym.rollout_collection.display.progress import Progress
from nemo_gym.rollout_collection.display.screen import Display
from nemo_gym.rollout_collection.execution.executor import ExecutorState

_DRAW_EVERY_S = 0.1


class ExamplesProgress:
    """Counts examples while they are played, and shows the counts."""

    def __init__(self, total: int, display: Display) -> None:
        self._progress = Progress(total, Counter(), {})
        self._display = display
        self._in_flight = 0
        self._drawn = 0.0

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Around one example."""
        self._in_flight += 1
        try:
            yield
        except Exception:
            self._progress.failed += 1
            raise
        finally:
            self._in_flight -= 1
            self._progress.done += 1
            self._show()

    def _show(self) -> None:
        is_last = self._progress.done == self._progress.total
        if is_last or time.monotonic() - self._drawn >= _DRAW_EVERY_S:
            self._drawn = time.monotonic()
            snapshot = self._progress.snapshot(ExecutorState(in_flight=self._in_flight))
            (self._display.finish if is_last else self._display.show)(snapshot)
