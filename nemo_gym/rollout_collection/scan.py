"""What stands in a file of rollouts: the key and the place of each, and its numbers.

A large output is read by several processes, a part each.
"""

import os
import pickle
import signal
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import orjson

from nemo_gym.codec import decode_json
from nemo_gym.journal import READ_BYTES, Recovery
from nemo_gym.metrics import Columns, Intake
from nemo_gym.records import BadLines, agent_of, key_of, read_rollouts
from nemo_gym.rollout_collection.resume import mend_output
from nemo_gym.rollout_collection.rollouts import OutputIndex

PART_BYTES = 64 << 20
"""A part that is worth a process of its own."""
_MOST_PARTS = 8


@dataclass
class Found:
    """The rollouts of an output."""

    index: OutputIndex = field(default_factory=OutputIndex)
    columns: defaultdict[str, Columns] = field(default_factory=lambda: defaultdict(Columns))
    """By agent."""
    is_dense: bool = False
    """Whether the file has a line, with its end, for every rollout, and no other."""

    def extend(self, other: "Found") -> None:
        self.index.extend(other.index)
        for agent, columns in other.columns.items():
            self.columns[agent].extend(columns)


def recover_output(path: Path) -> tuple[Found, Recovery]:
    """Every rollout of an output, mended first where a killed run left it torn."""
    found, recovery = scan(path), Recovery()
    if found is None or not found.index.is_unique():
        recovery = mend_output(path)
        found = _read_part(path, 0, path.stat().st_size)
        assert found is not None, "it was mended"
    return found, recovery


def find_rollouts(path: Path, bad_lines: BadLines, *, once: bool = True) -> Found:
    """Every rollout of a file that is only read; a line that is none is the business of `bad_lines`.

    So is one whose key stood there before, unless it may stand there more than once.
    """
    try:
        found = scan(path)
    except OSError:
        found = None  # it is named when it is read line by line
    if found is None or "" in found.columns or (once and not found.index.is_unique()):
        found = _read_line_by_line(path, bad_lines, once)
    return found


def _read_line_by_line(path: Path, bad_lines: BadLines, once: bool) -> Found:
    index = OutputIndex()
    intakes: defaultdict[str, Intake] = defaultdict(lambda: Intake(Columns()))
    for line, record, key, agent in read_rollouts(path, bad_lines, once=once):
        index.add(key, line.offset)
        intakes[agent].take(*key, record)
    return Found(index, _columns_of(intakes))


def scan(path: Path) -> Found | None:
    """All rollouts of a file; None where a line is not as it should be."""
    size = path.stat().st_size
    # A process with threads is not to be forked.
    cores = len(os.sched_getaffinity(0)) if threading.active_count() == 1 else 1
    parts = max(1, min(cores, size // PART_BYTES, _MOST_PARTS))
    edges = [size * part // parts for part in range(parts + 1)]
    others = [_Reader(path, *span) for span in pairwise(edges[1:])]
    try:
        found = _read_part(path, 0, edges[1])
        for reader in others:
            part = reader.result() if found is not None else None
            if found is None or part is None:
                return None
            found.extend(part)
    finally:
        for reader in others:
            reader.close()
    return found


def _read_part(path: Path, start: int, end: int) -> Found | None:
    """The lines that begin in a part of the output."""
    index = OutputIndex()
    intakes: defaultdict[str, Intake] = defaultdict(lambda: Intake(Columns()))
    with path.open("rb", READ_BYTES) as file:
        if start:
            file.seek(start - 1)
            file.readline()  # it began in the part before
        offset = file.tell()
        for line in file:
            if offset >= end:
                break
            is_finite = True
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                is_finite = False
                try:
                    record = decode_json(line)
                except (ValueError, RecursionError):
                    return None
            key = key_of(record) if isinstance(record, dict) else None
            if key is None or line[-1] != 10:
                return None
            index.add(key, offset)
            intake = intakes[agent_of(record)]
            (intake.take_finite if is_finite else intake.take)(*key, record)
            offset += len(line)
    return Found(index, _columns_of(intakes), is_dense=True)


def _columns_of(intakes: Mapping[str, Intake]) -> defaultdict[str, Columns]:
    return defaultdict(Columns, {agent: intake.columns for agent, intake in intakes.items()})


class _Reader:
    """A process that reads a part."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self._pipe, write_end = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _send_part(write_end, path, start, end)
        os.close(write_end)

    def result(self) -> Found | None:
        """What it found; None also where it came to grief. It has its part to read, no more, so this ends."""
        with open(self._pipe, "rb", closefd=False) as pipe:
            try:
                found: Found | None = pickle.load(pipe)
            except (EOFError, pickle.UnpicklingError):
                return None
        return found

    def close(self) -> None:
        os.close(self._pipe)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _send_part(descriptor: int, path: Path, start: int, end: int) -> None:
    """All that the other process does; it holds nothing that is its parent's, a lock least of all."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
        with open(descriptor, "wb") as pipe:
            pickle.dump(_read_part(path, start, end), pipe, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)
