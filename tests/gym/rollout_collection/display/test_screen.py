"""The progress display of a run, as it looks on a terminal."""

import fcntl
import io
import logging
import os
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest

from nemo_gym.log_output import LogHandler
from nemo_gym.rollout_collection.display.progress import Snapshot
from nemo_gym.rollout_collection.display.screen import Display

_STEP = re.compile(r"\x1b\[A|\r|\n|[^\x1b\r\n]+")


class Terminal(io.StringIO):
    """A stream that behaves like a terminal and keeps the rows of its screen."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        rows, row, column = [""], 0, 0
        for step in _STEP.findall(self.getvalue()):
            if step == "\x1b[A":
                row -= 1
            elif step == "\r":
                column = 0
            elif step == "\n":
                row, column = row + 1, 0
                rows += [""] * (row == len(rows))
            else:
                rows[row] = rows[row][:column].ljust(column) + step + rows[row][column + len(step) :]
                column += len(step)
        while rows and not rows[-1].strip():
            rows.pop()
        return [text.rstrip() for text in rows]


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
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_terminal_shows_a_bar_and_the_details_below_it(terminal: Terminal) -> None:
    Display(terminal).show(snapshot())
    bar, details = terminal.screen
    assert re.fullmatch(r"Collecting rollouts:  22%\|█+. *\| 45/200 \[01:05<03:50, 42/min\]", bar), bar
    assert all(text in details for text in DETAILS)
    assert max(len(bar), len(details)) < 80


def test_progress_is_redrawn_in_place(terminal: Terminal) -> None:
    display = Display(terminal)
    display.note("first")
    for done in (1, 2, 3):
        display.show(snapshot(done))
    first, bar, _ = terminal.screen
    assert first == "first" and "3/200" in bar


def test_notes_are_above_the_progress_and_later_notes_below_its_end(terminal: Terminal) -> None:
    display = Display(terminal)
    display.show(snapshot())
    display.note("early")
    early, bar, details = terminal.screen
    assert early == "early" and "45/200" in bar and "failed 3" in details
    display.finish(snapshot(200))
    display.note("late")
    early, bar, details, late = terminal.screen
    assert (early, late) == ("early", "late") and "200/200" in bar and "failed 3" in details


def test_lines_of_other_writers_are_not_erased(terminal: Terminal) -> None:
    display = Display(terminal)
    display.show(snapshot())
    terminal.write("WARNING from a library\n")
    display.show(snapshot(46))
    other, bar, _ = terminal.screen
    assert other.startswith("WARNING from a library") and "46/200" in bar


def test_log_lines_are_above_the_bar_while_there_is_one(terminal: Terminal) -> None:
    handler, logger = LogHandler(terminal), logging.getLogger("test of the bar")
    logging.getLogger().addHandler(handler)
    try:
        display = Display(terminal)
        display.show(snapshot())
        for number in range(3000):
            logger.warning("rollout %d failed", number)
        logger.warning("another\x1b[2J")
        display.finish(snapshot(done=200))
        handler.close()
    finally:
        logging.getLogger().removeHandler(handler)
    screen = terminal.screen
    assert screen[:2] == ["WARNING rollout 0 failed", r"WARNING another\x1b[2J"]
    assert screen[2].startswith("Collecting rollouts: 100%")
    assert screen[4:] == ["WARNING … and 2999 more like this: rollout 0 failed"]
    assert handler.stream is terminal


def test_text_of_others_neither_controls_the_terminal_nor_the_format(terminal: Terminal) -> None:
    means = {"{n}\x1b[2J": {"{reward}\n": 0.5}, "other": {"reward": 1.0}}
    Display(terminal).show(replace(snapshot(), means=means))
    _, details = terminal.screen
    assert details.startswith("{n} {reward} 0.5, other reward 1")


@pytest.mark.parametrize("columns", [0, 20, 40, 60, 79, 80, 81, 120, 200])
def test_lines_fit_the_terminal_that_is_written_to(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if standard output is a file. 0 columns: the terminal does not report its size."""
    monkeypatch.setenv("COLUMNS", "100")
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(reader, "rb", 0) as written, os.fdopen(writer, "w") as stream:
        display = Display(stream)
        display.show(snapshot())
        display.finish(snapshot())
        display.note("the end")
        text = b""
        while b"the end\r\n" not in text:
            text += written.read(4096)
    terminal = Terminal()
    terminal.write(text.decode().replace("\r\n", "\n"))
    bar, details, end = terminal.screen
    assert max(len(bar), len(details)) < (columns or 100) and end == "the end"
    assert 0 < columns < 60 or bar.endswith(" 45/200 [01:05<03:50, 42/min]")  # the bar shrinks first


def test_run_continues_when_the_terminal_is_closed(terminal: Terminal) -> None:
    display = Display(terminal)
    display.show(snapshot())
    terminal.close()
    display.show(snapshot(46))
    display.note("unheard")
    display.finish(snapshot(200))


def test_bar_does_not_set_the_start_method_of_multiprocessing() -> None:
    code = (
        "import io, multiprocessing\n"
        "from nemo_gym.progress_bar import ProgressBar\n"
        "ProgressBar(io.StringIO(), 'label', 2).update(1, '', '')\n"
        "multiprocessing.set_start_method('spawn')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_stream_that_is_not_a_terminal_gets_a_plain_line_at_the_end() -> None:
    stream = io.StringIO()
    display = Display(stream)
    display.show(snapshot())
    display.finish(snapshot(200))
    [line] = stream.getvalue().splitlines()
    assert line.startswith("Collecting rollouts: 200/200 (100%), 42/min") and "\x1b" not in line
    assert all(text in line for text in DETAILS)


def test_limits_of_endpoints_are_among_the_details(terminal: Terminal) -> None:
    Display(terminal).show(snapshot(limits={"host:8000": 48}))
    assert "limit host:8000 48" in terminal.screen[1]
