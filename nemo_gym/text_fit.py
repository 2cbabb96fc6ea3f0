"""Text that fits a number of columns. Wide characters, such as Chinese ones, take two columns."""

import os
import shutil
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import NamedTuple, TextIO
from unicodedata import east_asian_width

_USUAL_COLUMNS = 120
"""Columns of a terminal that does not report its size."""
_LINES = 30
"""Lines that a report fills at most."""
_LEAST_NAME = 20
"""Columns that the first column of a table keeps if it needs them; other columns are left out instead."""
_GAP = 2
"""Columns between two columns of a table."""
_JOINED = "\N{NO-BREAK SPACE}%"


class Screen(NamedTuple):
    """The room for a report."""

    columns: int
    lines: int

    @classmethod
    def of(cls, stream: TextIO) -> "Screen":
        """That of the terminal that the stream writes to; a file or a pipe has no limits."""
        return cls(terminal_columns(stream), _LINES) if stream.isatty() else UNLIMITED


def terminal_columns(stream: TextIO) -> int:
    """The columns of the terminal that the stream writes to; else COLUMNS, else `_USUAL_COLUMNS`."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not a terminal of the operating system
        columns = 0
    return columns or shutil.get_terminal_size((_USUAL_COLUMNS, 24)).columns


UNLIMITED = Screen(1_000_000, 1_000_000)


def width_of(text: str) -> int:
    return sum(map(_width, text))


def cut(text: str, columns: int) -> str:
    """The beginning of a text."""
    return text if width_of(text) <= columns else f"{_first(text, columns - 1).rstrip()}…"


def shortened(text: str, columns: int) -> str:
    """The beginning and the end of a text: names often differ at their ends."""
    if width_of(text) <= columns:
        return text
    tail = _first(text[::-1], (columns - 1) // 2)[::-1]
    return f"{_first(text, columns - 1 - width_of(tail))}…{tail}"


def height_of(lines: Iterable[str], columns: int) -> int:
    """The lines of a terminal that these lines fill."""
    return sum(max(1, -(-width_of(line) // columns)) for line in lines)


def wrapped(text: str, columns: int) -> list[str]:
    """A text as lines; all but the first are indented. A word longer than a line is broken, a number stays
    with its percent sign."""
    joined = text.replace(" %", _JOINED)
    lines = wrap(joined, max(columns, 10), subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(_JOINED, " %") for line in lines] or [""]


def fitted_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: int
) -> tuple[list[str], list[list[str]]]:
    """The header and rows of a table that fits: without its last columns, and with names shortened.

    The names are in the first column. The first two columns always stay.
    """
    widths = [max(map(width_of, cells)) for cells in zip(header, *rows, strict=True)]
    least = min(widths[0], _LEAST_NAME)
    kept = len(widths)
    while kept > 2 and least + _taken(widths[1:kept]) > columns:
        kept -= 1
    room = max(columns - _taken(widths[1:kept]), 2)
    return list(header[:kept]), [[shortened(row[0], room), *row[1:kept]] for row in rows]


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * len(widths)


def _width(character: str) -> int:
    return 2 if east_asian_width(character) in "WF" else 1


def _first(text: str, columns: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += _width(character)
        if used > columns:
            return text[:place]
    return text
