"""Text for the terminal: tables, bars, and what others wrote made harmless."""

import re
from collections.abc import Sequence

_BLOCKS = " ▏▎▍▌▋▊▉█"
_STEPS = "▁▂▃▄▅▆▇█"
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; nothing is cut."""
    cells = [list(header), *([one_line(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    rule = ["─" * width for width in widths]
    return "\n".join(_line(row, widths) for row in [cells[0], rule, *cells[1:]])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def bar(share: float, width: int) -> str:
    """A horizontal bar; the smallest share above 0 is seen."""
    full, part = divmod(round(share * width * 8) or (share > 0), 8)
    return "█" * full + _BLOCKS[part].strip()


def step(share: float) -> str:
    """One upright bar."""
    return _STEPS[min(int(share * len(_STEPS)), len(_STEPS) - 1)]


def one_line(text: str) -> str:
    """Anybody's text as one line that is safe to show: no control characters, no escape sequences."""
    words = " ".join(_ESCAPES.sub("", text).split())
    return "".join(character for character in words if character.isprintable())
