"""What people see of a run while it goes on."""

import fcntl
import io
import os
import re
import struct
import termios

import pytest

from nemo_gym.rollout_collection.display.progress import Snapshot
from nemo_gym.rollout_collection.display.screen import Display, terminal_lines

_STEP = re.compile(r"\x1b\[A|\x1b\[J|\r|\n|[^\x1b\r\n]+")


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and what stands on its screen."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        rows, row, column = [""], 0, 0
        for step in _STEP.findall(self.getvalue()):
            if step == "\x1b[A":
                row -= 1
            elif step == "\x1b[J":
                rows[row:] = [rows[row][:column]]
            elif step == "\r":
                column = 0
            elif step == "\n":
                row, column = row + 1, 0
                rows += [""] * (row == len(rows))
            else:
                rows[row] = rows[row][:column].ljust(column) + step + rows[row][column + len(step) :]
                column += len(step)
        return rows


def snapshot(done: int = 45, limits: dict[str, int] | None = None) -> Snapshot:
    return Snapshot(
        done=done,
        total=200,
        failed=3,
        elapsed_s=65,
        per_minute=41.5,
        eta_s=230,
        tokens_per_s=12_345,
        in_flight=64,
        retries=2,
        means={"agent": {"reward": 0.512, "steps": 3.0}},
        left=[("agent", 155)],
        limits=limits or {},
    )


DETAILS = ("reward 0.512", "failed 3", "in flight 64", "12.3k tok/s", "retries 2", "steps 3")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal()


def test_narrow_terminal_shows_all_details_on_a_second_line(narrow: Terminal) -> None:
    Display(narrow).show(snapshot())
    bar, details = narrow.screen
    assert "|████▌" in bar and "45/200 [01:05<03:50, 42/min]" in bar
    assert all(text in details for text in DETAILS)
    assert max(len(bar), len(details)) < 80 and "…" not in bar + details


def test_wide_terminal_shows_one_line(wide: Terminal) -> None:
    Display(wide).show(snapshot())
    [line] = wide.screen
    assert "45/200" in line and all(text in line for text in DETAILS)


@pytest.mark.parametrize("name", ["narrow", "wide"])
def test_progress_is_redrawn_in_its_place(request: pytest.FixtureRequest, name: str) -> None:
    terminal: Terminal = request.getfixturevalue(name)
    display = Display(terminal)
    display.note("first")
    for done in (1, 2, 3):
        display.show(snapshot(done))
    first, bar, *more = terminal.screen
    assert first == "first" and "3/200" in bar
    assert len(more) == (name == "narrow")


@pytest.mark.parametrize("name", ["narrow", "wide"])
def test_notes_stand_above_the_progress_and_nothing_of_it_is_left_beside_them(
    request: pytest.FixtureRequest, name: str
) -> None:
    terminal: Terminal = request.getfixturevalue(name)
    display = Display(terminal)
    display.show(snapshot())
    display.note("hear")
    assert terminal.screen == ["hear", ""]
    display.show(snapshot())
    display.finish(snapshot(200))
    display.note("done")
    heard, bar, *details, done, empty = terminal.screen
    assert (heard, done, empty) == ("hear", "done", "") and "200/200" in bar
    assert len(details) == (name == "narrow")


def test_what_others_write_meanwhile_is_not_erased(narrow: Terminal) -> None:
    display = Display(narrow)
    display.show(snapshot())
    narrow.write("WARNING of somebody else\n")
    display.show(snapshot(46))
    other, bar, _ = narrow.screen
    assert other.startswith("WARNING of somebody else") and "46/200" in bar


def test_terminal_that_grows_wider_keeps_no_second_line(
    narrow: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    display = Display(narrow)
    display.show(snapshot())
    monkeypatch.setenv("COLUMNS", "200")
    display.show(snapshot())
    assert len(narrow.screen) == 1


def test_bar_shrinks_before_anything_is_cut() -> None:
    widths = {}
    for columns in range(56, 81):
        bar, _ = terminal_lines(snapshot(), columns)
        assert bar.endswith(" 45/200 [01:05<03:50, 42/min]") and len(bar) <= columns
        widths[columns] = len(bar.split("|")[1]) if "|" in bar else 0
    assert list(widths.values()) == sorted(widths.values())
    assert (widths[56], widths[70], widths[80]) == (0, 14, 20)
    bar, details = terminal_lines(snapshot(), 40)
    assert len(bar) == len(details) == 40 and bar.endswith("…") and details.endswith("…")


def test_width_is_that_of_the_terminal_that_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output may be a file meanwhile."""
    monkeypatch.delenv("COLUMNS", raising=False)
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(reader, "rb", 0) as written, os.fdopen(writer, "w") as stream:
        Display(stream).finish(snapshot())
        text = b""
        while text.count(b"\n") < 2:
            text += written.read(4096)
    bar, details = text.decode().replace("\r\x1b[J", "").splitlines()
    assert max(len(bar), len(details)) < 80 and "failed 3" in details


def test_elsewhere_there_is_a_plain_line_at_the_end() -> None:
    stream = io.StringIO()
    display = Display(stream)
    display.show(snapshot())
    display.finish(snapshot(200))
    [line] = stream.getvalue().splitlines()
    assert line.startswith("Collecting rollouts: 200/200 (100%), 42/min") and "\x1b" not in line
    assert all(text in line for text in DETAILS)


def test_limits_of_endpoints_stand_in_the_progress(narrow: Terminal) -> None:
    Display(narrow).show(snapshot(limits={"host:8000": 48}))
    assert "limit host:8000 48" in narrow.screen[1]
