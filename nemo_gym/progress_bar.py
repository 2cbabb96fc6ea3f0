"""A progress bar on a terminal, drawn by `tqdm`. Import this module when a bar is first shown."""

from threading import RLock
from typing import TextIO

from tqdm import tqdm

from nemo_gym.text_fit import terminal_columns


class _Line(tqdm):  # type: ignore[misc]  # tqdm comes without types
    monitor_interval = 0  # no thread that redraws: the owner does


class ProgressBar:
    """Two lines: the bar, and details below it. Between two updates the cursor is at the start of the bar."""

    def __init__(self, stream: TextIO, label: str, total: int) -> None:
        _Line.set_lock(RLock())  # tqdm's own lock would fix the start method of multiprocessing
        self._stream = stream
        shared = {"file": stream, "ncols": _columns(stream), "nrows": 24, "leave": True}
        self._bar = _Line(desc=label, total=total, position=0, **shared)
        # Only lines with a bar are cut to the width of the terminal, so this one has a bar of width 0.
        self._details = _Line(bar_format="{desc}{bar:0}", position=1, **shared)

    def update(self, done: int, times: str, details: str) -> None:
        """Draw: how much is done, the text in brackets after the counts, and the line of details."""
        self._bar.ncols = self._details.ncols = _columns(self._stream)
        self._bar.n = done
        self._bar.bar_format = f"{{desc}}: {{percentage:3.0f}}%|{{bar}}| {{n_fmt}}/{{total_fmt}} [{times}]"
        self._bar.refresh()
        self._details.set_description_str(details)
        self._to_start()

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        _Line.write(text, file=self._stream)
        self._to_start()

    def close(self) -> None:
        """Leave both lines where they are and continue below them."""
        self._bar.close()
        self._details.close()
        self._stream.flush()

    def _to_start(self) -> None:
        self._stream.write("\r")
        self._stream.flush()


def _columns(stream: TextIO) -> int:
    """How many columns a line may fill: one less than the terminal has, because a full line may wrap.

    tqdm can find this out too, but takes the 0 columns of a terminal without a known size literally.
    """
    return terminal_columns(stream) - 1
