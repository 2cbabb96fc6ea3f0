"""Progress for people: a bar on a terminal, a plain line now and then anywhere else."""

import shutil
import time
from typing import TextIO

from nemo_gym.rollout_collection.progress import Snapshot

LABEL = "Collecting rollouts"
LINE_EVERY_S = 10.0
_BAR_WIDTH = 20
_BLOCKS = " ▏▎▍▌▋▊▉█"


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
            self._write(f"\r\x1b[2K{fitted(bar_line(snapshot))}")
            self._is_bar_shown = True
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self._write(plain_line(snapshot) + "\n")

    def finish(self, snapshot: Snapshot) -> None:
        if self._is_terminal:
            self._write(f"\r\x1b[2K{fitted(bar_line(snapshot))}\n")
            self._is_bar_shown = False
        else:
            self._write(plain_line(snapshot) + "\n")

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        clear = "\r\x1b[2K" if self._is_bar_shown else ""
        self._write(f"{clear}{text}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more; the run goes on


def bar_line(snapshot: Snapshot) -> str:
    share = snapshot.done / snapshot.total if snapshot.total else 1.0
    eighths = int(share * _BAR_WIDTH * 8)
    full, part = divmod(eighths, 8)
    bar = ("█" * full + (_BLOCKS[part] if full < _BAR_WIDTH else "")).ljust(_BAR_WIDTH)
    times = f"{_clock(snapshot.elapsed_s)}<{_clock(snapshot.eta_s)}"
    counts = f"{snapshot.done}/{snapshot.total} [{times}, {_number(snapshot.per_minute)}/min]"
    return f"{LABEL}: {share:4.0%}|{bar}| {counts} {details(snapshot)}"


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
        shown = [f"{prefix}{name} {mean:.3g}" for name, mean in means.items()]
        rewards += shown[:1]
        others += shown[1:]
    if len(snapshot.left) > 1:
        others.append("left " + ", ".join(f"{agent} {count}" for agent, count in snapshot.left))
    return ", ".join([*rewards, *words, *others])


def fitted(line: str) -> str:
    width = shutil.get_terminal_size((120, 24)).columns - 1
    return line if len(line) <= width else line[: width - 1] + "…"


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
