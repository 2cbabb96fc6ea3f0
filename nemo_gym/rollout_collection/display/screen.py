"""Progress for people: a bar on a terminal, a plain line now and then anywhere else.

Between two writes the cursor stands where the bar begins, so that all of it can be erased from there.
"""

import os
import shutil
import time
from typing import TextIO

from nemo_gym.rollout_collection.display.progress import Snapshot
from nemo_gym.terminal import one_line

LABEL = "Collecting rollouts"
LINE_EVERY_S = 10.0
_BAR_WIDTH = 20
_BLOCKS = " ▏▎▍▌▋▊▉█"
_UP = "\x1b[A"
_ERASE = "\r\x1b[J"
"""All from here to the end of the screen."""


class Display:
    """Writes snapshots to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last_line = time.monotonic()
        self._is_bar_shown = False

    def show(self, snapshot: Snapshot) -> None:
        """Called every second."""
        if self._is_terminal:
            lines = terminal_lines(snapshot, self._columns())
            back = _UP * (len(lines) - 1) + "\r"
            self._write(_ERASE + "\n".join(lines) + back)
            self._is_bar_shown = True
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self._write(plain_line(snapshot) + "\n")

    def finish(self, snapshot: Snapshot) -> None:
        if self._is_terminal:
            self._write(_ERASE + "\n".join(terminal_lines(snapshot, self._columns())) + "\n")
            self._is_bar_shown = False
        else:
            self._write(plain_line(snapshot) + "\n")

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        self._write(f"{_ERASE if self._is_bar_shown else ''}{text}\n")

    def _columns(self) -> int:
        """Those a line may fill: a full one would move the cursor on some terminals."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):  # not a terminal of the system's
            columns = 0
        return (columns or shutil.get_terminal_size((120, 24)).columns) - 1

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more; the run goes on


def terminal_lines(snapshot: Snapshot, columns: int) -> list[str]:
    """The bar and the details: on one line if they fit, else on two, the bar no wider than there is room."""
    bar, told = bar_line(snapshot), details(snapshot)
    if len(bar) + 1 + len(told) <= columns:
        return [f"{bar} {told}"]
    if len(bar) > columns:
        bar = bar_line(snapshot, max(0, _BAR_WIDTH - (len(bar) - columns)))
    return [_cut(bar, columns), _cut(told, columns)]


def bar_line(snapshot: Snapshot, bar_width: int = _BAR_WIDTH) -> str:
    share = snapshot.done / snapshot.total if snapshot.total else 1.0
    full, part = divmod(int(share * bar_width * 8), 8)
    bar = ("█" * full + (_BLOCKS[part] if full < bar_width else "")).ljust(bar_width)
    shown = f"|{bar}|" if bar_width else ""
    times = f"{_clock(snapshot.elapsed_s)}<{_clock(snapshot.eta_s)}"
    counts = f"{snapshot.done}/{snapshot.total} [{times}, {_number(snapshot.per_minute)}/min]"
    return f"{LABEL}: {share:4.0%}{shown} {counts}"


def plain_line(snapshot: Snapshot) -> str:
    share = snapshot.done / snapshot.total if snapshot.total else 1.0
    counts = f"{snapshot.done}/{snapshot.total} ({share:.0%}), {_number(snapshot.per_minute)}/min"
    return f"{LABEL}: {counts}, ETA {_clock(snapshot.eta_s)}, {details(snapshot)}"


def details(snapshot: Snapshot) -> str:
    """Means, failures, what is in flight."""
    words = [f"failed {snapshot.failed}", f"in flight {snapshot.in_flight}"]
    words.append(f"{_number(snapshot.tokens_per_s)} tok/s")
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


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: columns - 1] + "…"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _number(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e6 if unit == 'M' else 1e3):.1f}{unit}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
