"""Progress for people: a bar on a terminal, a plain line every few seconds elsewhere."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from nemo_gym.log_output import LogsAbove
from nemo_gym.rollout_collection.display.progress import Snapshot
from nemo_gym.rollout_collection.display.quantities import clock, short_number
from nemo_gym.terminal import one_line, safe_text

if TYPE_CHECKING:
    from nemo_gym.progress_bar import ProgressBar

LABEL = "Collecting rollouts"
LINE_EVERY_S = 10.0
_UNWRITABLE = (OSError, ValueError)
"""Errors of a stream whose terminal or reader is gone. The run continues without it."""


class Display:
    """Writes snapshots and notes to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last_line = time.monotonic()
        self._bar: ProgressBar | None = None
        self._logs: LogsAbove | None = None
        """Set while there is a bar."""

    def show(self, snapshot: Snapshot) -> None:
        """Called every second."""
        if self._is_terminal:
            with suppress(*_UNWRITABLE):
                self._draw(snapshot)
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self._write_line(plain_line(snapshot))

    def finish(self, snapshot: Snapshot) -> None:
        """Write the last snapshot; later notes go below it."""
        if not self._is_terminal:
            self._write_line(plain_line(snapshot))
            return
        with suppress(*_UNWRITABLE):
            self._draw(snapshot).close()
        self._bar = None
        if self._logs is not None:
            self._logs.end()
            self._logs = None

    def note(self, text: str) -> None:
        """Write a separate line, above the bar."""
        if self._bar is None:
            self._write_line(safe_text(text))
        else:
            with suppress(*_UNWRITABLE):
                self._bar.note(safe_text(text))

    def _draw(self, snapshot: Snapshot) -> "ProgressBar":
        if self._bar is None:
            from nemo_gym.progress_bar import ProgressBar  # loads tqdm

            self._bar = ProgressBar(self._stream, LABEL, snapshot.total)
            self._logs = LogsAbove(self._stream, self.note)
        times = f"{clock(snapshot.elapsed_s)}<{clock(snapshot.eta_s)}"
        rate = f"{short_number(snapshot.per_minute)}/min"
        self._bar.update(snapshot.done, f"{times}, {rate}", details(snapshot))
        return self._bar

    def _write_line(self, text: str) -> None:
        with suppress(*_UNWRITABLE):
            self._stream.write(f"{text}\n")
            self._stream.flush()


def plain_line(snapshot: Snapshot) -> str:
    share = snapshot.done / snapshot.total if snapshot.total else 1.0
    counts = f"{snapshot.done}/{snapshot.total} ({share:.0%}), {short_number(snapshot.per_minute)}/min"
    return f"{LABEL}: {counts}, ETA {clock(snapshot.eta_s)}, {details(snapshot)}"


def details(snapshot: Snapshot) -> str:
    """Means, failures, rollouts in flight."""
    words = [f"failed {snapshot.failed}", f"in flight {snapshot.in_flight}"]
    words.append(f"{short_number(snapshot.tokens_per_s)} tok/s")
    if snapshot.waiting:
        words.insert(0, f"waiting: {waiting_text(snapshot.waiting)}")
    if snapshot.limits:
        words.append("limit " + ", ".join(f"{origin} {limit}" for origin, limit in snapshot.limits.items()))
    if snapshot.retries:
        words.append(f"retries {snapshot.retries}")
    several = len(snapshot.means) > 1
    rewards, others = [], []
    for agent, means in snapshot.means.items():
        prefix = f"{agent} " if several else ""
        shown = [one_line(f"{prefix}{name} {mean:.3g}") for name, mean in means.items()]
        rewards += shown[:1]
        others += shown[1:]
    if len(snapshot.left) > 1:
        others.append("left " + ", ".join(f"{one_line(agent)} {count}" for agent, count in snapshot.left))
    return ", ".join([*rewards, *words, *others])


def waiting_text(waiting: Mapping[str, int]) -> str:
    """`429 ×20, connection refused ×4`."""
    return ", ".join(f"{one_line(str(cause))} ×{count}" for cause, count in waiting.items())
