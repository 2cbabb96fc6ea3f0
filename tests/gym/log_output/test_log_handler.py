"""The same failure is logged once in full, then counted. No text in a log line controls the terminal."""

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from nemo_gym.log_output import LogHandler, RepeatPolicy, log_foreign_line
from nemo_gym.log_output.repeated import RepeatedRecords

SECRET = "sk-5Tq9XzQ"


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def handler(output: io.StringIO) -> LogHandler:
    return LogHandler(output)


@pytest.fixture
def logger(handler: LogHandler) -> Iterator[logging.Logger]:
    logger = logging.getLogger("test of the log handler")
    logger.propagate = False
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def boom(number: int) -> None:
    raise ValueError(f"row {number} with {'x' * number}")


def boom_elsewhere(number: int) -> None:
    raise ValueError(f"row {number}")


def log_errors(logger: logging.Logger, count: int, *calls: Callable[[int], None]) -> None:
    for number in range(count):
        for call in calls:
            try:
                call(number)
            except ValueError as error:
                logger.error("calculator: %r", error, exc_info=error)


def test_thousands_of_errors_from_two_places_give_two_tracebacks_and_two_counts(
    logger: logging.Logger, handler: LogHandler, output: io.StringIO
) -> None:
    log_errors(logger, 2000, boom, boom_elsewhere)
    assert output.getvalue().count("Traceback") == 2
    handler.close()
    assert output.getvalue().count("… and 1999 more like this: calculator: ValueError('row 0") == 2


def test_same_warning_about_480_rows_is_one_line_and_a_count(
    logger: logging.Logger, handler: LogHandler, output: io.StringIO
) -> None:
    for number in range(480):
        logger.warning("rollout %d:%d: 401 Unauthorized at http://host", number, number % 3)
    assert output.getvalue() == "WARNING rollout 0:0: 401 Unauthorized at http://host\n"
    handler.write_counts()
    handler.write_counts()
    lines = output.getvalue().splitlines()
    assert lines[1:] == ["WARNING … and 479 more like this: rollout 0:0: 401 Unauthorized at http://host"]


def test_messages_that_all_differ_are_counted_together_after_a_few(
    logger: logging.Logger, handler: LogHandler, output: io.StringIO
) -> None:
    for number in range(500):
        logger.warning("no such tool: %s", "".join(chr(97 + int(digit)) for digit in str(number)))
    handler.close()
    lines = output.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[-1] == "WARNING … and 495 more like this: no such tool: f"


def test_what_is_not_a_warning_is_always_logged(logger: logging.Logger, output: io.StringIO) -> None:
    logger.setLevel(logging.INFO)
    for _ in range(3):
        logger.info("ready")
    assert output.getvalue() == "INFO ready\n" * 3


def record(text: str, line: int = 1) -> logging.LogRecord:
    return logging.LogRecord("name", logging.WARNING, "file.py", line, text, (), None)


def test_a_count_is_written_at_most_once_in_its_time() -> None:
    now = 0.0
    repeated = RepeatedRecords(RepeatPolicy(count_every_s=60), lambda: now)
    counts = []
    for _ in range(1000):
        now += 1
        for text in ("refused", "broken"):
            if not repeated.is_new(record(text)) and (line := repeated.due_count()):
                counts.append(line)
    assert 15 <= len(counts) <= 17
    counted = sum(int(line.split()[2]) for line in [*counts, *repeated.final_counts()])
    assert counted == 2 * 999


def test_memory_is_bounded_whatever_is_logged() -> None:
    repeated = RepeatedRecords(RepeatPolicy(max_causes=10))
    for number in range(10_000):
        repeated.is_new(record("text", line=number))
    assert max(repeated.sizes()) <= 10
    assert len(repeated.final_counts()) <= 11


def test_no_log_line_controls_the_terminal_or_shows_a_secret(
    logger: logging.Logger, handler: LogHandler, output: io.StringIO
) -> None:
    handler.hide([SECRET])
    hostile = f"a\x1b[2Jb\x9bc\x7f\u202ed\u2028e\rf\nERROR forged {SECRET}\x00"
    logger.warning("%s", hostile)
    try:
        raise RuntimeError(hostile)
    except RuntimeError:
        logger.exception("failed")
    text = output.getvalue()
    assert not any(character in text for character in "\x1b\x9b\x7f\u202e\u2028\r\x00")
    assert SECRET not in text
    assert r"a\x1b[2Jb\x9bc\x7f\u202ed\u2028e\rf" in text
    assert [line for line in text.splitlines() if line.startswith("ERROR")] == ["ERROR failed"]
    assert "  Traceback (most recent call last):\n" in text


def test_lines_of_other_processes_are_shown_as_they_are(output: io.StringIO) -> None:
    root = logging.getLogger()
    handler = LogHandler(output)
    root.addHandler(handler)
    try:
        for _ in range(2):
            log_foreign_line("[worker 1] WARNING text\x1b[1m")
    finally:
        root.removeHandler(handler)
    assert output.getvalue() == "[worker 1] WARNING text\\x1b[1m\n" * 2


def test_record_whose_arguments_do_not_fit_is_reported_without_them(
    handler: LogHandler, output: io.StringIO
) -> None:
    handler.handle(logging.LogRecord("name", logging.WARNING, "file.py", 7, "%d", (SECRET,), None))
    assert output.getvalue() == "WARNING a log record cannot be written: file.py:7\n"
