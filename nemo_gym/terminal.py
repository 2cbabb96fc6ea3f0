"""Text for the terminal: tables, charts, and untrusted text made safe to show.

`rich` is loaded when the first table is made.
"""

import re
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_STEPS = "▁▂▃▄▅▆▇█"
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029]"  # separators of lines and paragraphs
)
_UNLIMITED = 1_000_000
"""Columns: more than any table has, so that no cell is cut or wrapped."""


def counted(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as plain text, columns as wide as their widest cell. Cells may hold untrusted text."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="none"
    )
    for title in header:
        drawn.add_column(Text(title), no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(one_line(str(cell))) for cell in row))
    return _plain(drawn)


def bar_chart(bars: Sequence[tuple[str, float, str]], width: int) -> str:
    """One line per bar: a label, a bar for a share of 0 to 1, and a note.

    The bar of a share above 0 is always visible.
    """
    from rich.bar import Bar
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, 2), pad_edge=False)
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(no_wrap=True)
    drawn.add_column(no_wrap=True)
    smallest = 1 / (8 * width)
    for label, share, note in bars:
        shown = max(share, smallest) if share > 0 else 0.0
        drawn.add_row(Text(label), Bar(1.0, 0.0, shown, width=width), Text(note))
    return _plain(drawn)


def step(share: float) -> str:
    """One upright bar."""
    return _STEPS[min(int(share * len(_STEPS)), len(_STEPS) - 1)]


def one_line(text: str) -> str:
    """Untrusted text as one line that is safe to show: no control characters, no escape sequences."""
    words = " ".join(_ESCAPES.sub("", text).split())
    return "".join(character for character in words if character.isprintable())


def safe_text(text: str) -> str:
    """Untrusted text of several lines, safe to show: other control characters as `\\x1b` or `\\u202e`."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_safe(text: str) -> bool:
    """Whether `safe_text` leaves it unchanged."""
    return _UNSAFE.search(text) is None


def _plain(drawn: "Table") -> str:
    """The table without colours, whatever the terminal and the environment say."""
    from rich.console import Console

    written = StringIO()
    console = Console(file=written, width=_UNLIMITED, color_system=None, legacy_windows=False)
    console.print(drawn)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())
