"""The handler of every process of a run: it formats, redacts, escapes and counts."""

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TextIO

from nemo_gym.config.secrets import redact
from nemo_gym.log_output.repeated import RepeatedRecords, RepeatPolicy
from nemo_gym.terminal import safe_text

_FOREIGN = "is_foreign_line"
_EVENT = "is_event"
EVENT = {_EVENT: True}
"""The `extra` of warnings that are always shown, such as a restart. There must be few of them."""
_FORMAT = "%(levelname)s %(message)s"
_FORMAT_WITH_NAME = "%(levelname)s %(name)s: %(message)s"

_foreign = logging.getLogger(__name__)


class _Formatter(logging.Formatter):
    """No line but the first of a record starts at the margin, so that no text can pretend to be a record."""

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, _FOREIGN, False):
            return safe_text(record.getMessage()).replace("\n", " ")
        return super().format(record).replace("\n", "\n  ")


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes warnings and errors once in full, then counts; other records always."""

    def __init__(
        self, stream: TextIO | None = None, *, with_names: bool = False, policy: RepeatPolicy | None = None
    ) -> None:
        super().__init__(stream)
        self.setFormatter(_Formatter(_FORMAT_WITH_NAME if with_names else _FORMAT))
        self._repeated = RepeatedRecords(policy or RepeatPolicy())
        self._secrets: frozenset[str] = frozenset()

    def hide(self, secrets: Iterable[str]) -> None:
        """Replace these texts in every line from now on."""
        self._secrets |= frozenset(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return safe_text(self.redacted(super().format(record)))

    def redacted(self, text: str) -> str:
        return redact(text, self._secrets)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING or any(hasattr(record, one) for one in (_FOREIGN, _EVENT)):
            super().emit(record)
            return
        try:
            is_new = self._repeated.is_new(record)
        except Exception:  # the boundary to a caller's arguments, which may not fit the message
            self.handleError(record)
            return
        if is_new:
            super().emit(record)
        elif (line := self._repeated.due_count()) is not None:
            self._write_count(line)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say where an unusable record comes from. `logging` would print its arguments as they are."""
        place = f"{record.pathname}:{record.lineno}"
        with suppress(OSError, ValueError):  # the terminal or its reader is gone
            self.stream.write(f"WARNING a log record cannot be written: {safe_text(place)}\n")

    def write_counts(self) -> None:
        """Write how often each failure occurred since the last line about it."""
        with self.lock or threading.RLock():
            for line in self._repeated.final_counts():
                self._write_count(line)

    def close(self) -> None:
        self.write_counts()
        super().close()

    def _write_count(self, line: str) -> None:
        fields = {"name": __package__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": line}
        super().emit(logging.makeLogRecord(fields))


def start_logging(
    level: int, *, with_names: bool = False, stream: TextIO | None = None, policy: RepeatPolicy | None = None
) -> LogHandler:
    """Log to standard error, also warnings and exceptions that nothing catches. Without effect if the logging
    of this process is configured already."""
    handler = LogHandler(stream, with_names=with_names, policy=policy)
    root = logging.getLogger()
    if root.handlers:
        return next(iter(_handlers()), handler)
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    return handler


@contextmanager
def logs_shown(secrets: Iterable[str]) -> Iterator[None]:
    """Inside the block, log like a command does, unless the caller has configured logging."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = LogHandler()
    handler.setLevel(logging.WARNING)
    handler.hide(secrets)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def log_counts() -> None:
    """Write the counts that were not written yet, before the last words of a process."""
    for handler in _handlers():
        handler.write_counts()


def hidden(text: str) -> str:
    """A text for the terminal without the secrets that log lines do not show."""
    for handler in _handlers():
        text = handler.redacted(text)
    return text


def _handlers() -> list[LogHandler]:
    return [one for one in logging.getLogger().handlers if isinstance(one, LogHandler)]


def log_foreign_line(line: str) -> None:
    """Show one line that another process of the run wrote; it has counted its own failures."""
    _foreign.warning("%s", line, extra={_FOREIGN: True})


class LogsAbove:
    """From now until `end`, the log lines of this process are written by a function, such as above a bar."""

    def __init__(self, stream: TextIO, write: Callable[[str], None]) -> None:
        self._streams: list[tuple[logging.StreamHandler[Any], Any]] = []
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream in (stream, sys.stderr):
                self._streams.append((handler, handler.setStream(_Above(write))))

    def end(self) -> None:
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams = []


class _Above:
    """The part of a stream that a handler uses."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def write(self, text: str) -> None:
        self._write(text.removesuffix("\n"))

    def flush(self) -> None:
        pass


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger().critical("an unexpected error", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(hooked: threading.ExceptHookArgs) -> None:
    name = hooked.thread.name if hooked.thread is not None else "?"
    if hooked.exc_value is not None and not isinstance(hooked.exc_value, SystemExit):
        error = (hooked.exc_type, hooked.exc_value, hooked.exc_traceback)
        logging.getLogger().error("an error ended the thread %s", name, exc_info=error)
