"""Which warnings and errors were logged before: the first is shown in full, the others are counted.

Two records have the same cause if they were logged in the same place and, for an exception, it was raised
through the same lines of code; for any other record, its first line is the same apart from numbers.
Invariant: the memory is bounded, whatever is logged.
"""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import TracebackType

_NUMBER = re.compile(r"\d+|0x[0-9a-f]+")
_TRACEBACK_LINE = re.compile(r'^ *File ".*", line \d+', re.MULTILINE)
_COMPARED = 300
"""Characters of a message that are compared."""
_QUOTED = 160
"""Characters of the first line that a count repeats."""
_OTHERS = "others"


@dataclass(frozen=True)
class RepeatPolicy:
    """How much is logged."""

    count_every_s: float = 60.0
    """Time between two lines with counts."""
    causes_per_place: int = 5
    """So many causes from one place in the code are shown in full; all others are counted together."""
    max_causes: int = 500
    """So many causes are remembered. The one that was not logged for the longest time is forgotten first."""
    final_counts: int = 10
    """Lines with counts at the end."""


@dataclass
class _Cause:
    first_line: str
    uncounted: int = 0
    """Records since the last line about it."""
    last_line_s: float = 0.0


class RepeatedRecords:
    """Decides what is written for each record."""

    def __init__(self, policy: RepeatPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._causes: OrderedDict[Hashable, _Cause] = OrderedDict()
        self._in_full: OrderedDict[Hashable, int] = OrderedDict()
        """By place, how many of its causes were shown in full."""
        self._last_count_s = clock()

    def is_new(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be shown in full; counts it otherwise."""
        place = (record.pathname, record.lineno)
        key = (place, _cause_of(record))
        if key in self._causes or self._in_full.get(place, 0) < self._policy.causes_per_place:
            return self._counted(key, record, place)
        return self._counted((place, _OTHERS), record, place)

    def due_count(self) -> str | None:
        """A line about the cause that was counted last, if it is time for one."""
        now = self._clock()
        cause = next(reversed(self._causes.values()), None)
        if cause is None or not cause.uncounted:
            return None
        every_s = self._policy.count_every_s
        if min(now - self._last_count_s, now - cause.last_line_s) < every_s:
            return None
        self._last_count_s = cause.last_line_s = now
        return _line(cause)

    def final_counts(self) -> list[str]:
        """Lines about everything that was counted and not reported yet, the most frequent first."""
        rest = sorted((one for one in self._causes.values() if one.uncounted), key=lambda one: -one.uncounted)
        shown, others = rest[: self._policy.final_counts], rest[self._policy.final_counts :]
        number = sum(one.uncounted for one in others)
        lines = [_line(cause) for cause in shown]
        for cause in others:
            cause.uncounted = 0
        return [*lines, f"… and {number} more warnings with {len(others)} other causes"] if others else lines

    def sizes(self) -> tuple[int, int]:
        """How many causes and places are remembered."""
        return len(self._causes), len(self._in_full)

    def _counted(self, key: Hashable, record: logging.LogRecord, place: Hashable) -> bool:
        known = self._causes.get(key)
        if known is not None:
            known.uncounted += 1
            self._causes.move_to_end(key)
            return False
        cause = self._causes[key] = _Cause(_first_line(record.getMessage())[:_QUOTED])
        if len(self._causes) > self._policy.max_causes:
            self._causes.popitem(last=False)
        cause.last_line_s = self._clock()
        shown = self._in_full[place] = self._in_full.get(place, 0) + 1
        self._in_full.move_to_end(place)
        if len(self._in_full) > self._policy.max_causes:
            self._in_full.popitem(last=False)
        cause.uncounted = shown > self._policy.causes_per_place
        return not cause.uncounted


def _cause_of(record: logging.LogRecord) -> Hashable:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        return _raised_through(error)
    text = record.getMessage()
    if lines := _TRACEBACK_LINE.findall(text):
        return frozenset(lines)
    return _NUMBER.sub("#", _first_line(text)[:_COMPARED])


def _raised_through(error: BaseException) -> Hashable:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = set()
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        lines.add((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return type(error).__qualname__, frozenset(lines)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _line(cause: _Cause) -> str:
    count, cause.uncounted = cause.uncounted, 0
    return f"… and {count} more like this: {cause.first_line}"
