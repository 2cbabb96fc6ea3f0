"""Reads a file of rollouts: the key, the place and the numbers of each.

Several processes read a large file, one part each.
"""

import os
import pickle
import signal
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path

import orjson

from nemo_gym.codec import decode_json
from nemo_gym.journal import READ_BYTES, Recovery
from nemo_gym.machine import available_cores
from nemo_gym.metrics import Columns, Intake
from nemo_gym.records import BadLines, Record, agent_of, are_indices, key_of, packed, read_rollouts
from nemo_gym.rollout_collection.recording.recovery import repair_output
from nemo_gym.rollout_collection.recording.rollouts import OutputIndex
from nemo_gym.types import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

_BATCH_BYTES = 1 << 16
"""Parsed at once: few calls, and the data fits into the cache of the processor."""
_NEWLINE = 10
_task_of, _rollout_of = itemgetter(TASK_INDEX_KEY_NAME), itemgetter(ROLLOUT_INDEX_KEY_NAME)
_agent_ref_of, _name_of = itemgetter(AGENT_REF_KEY_NAME), itemgetter("name")
PART_BYTES = 64 << 20
"""The size of a part that is worth a process of its own."""
_MOST_PARTS = 8
_MOST_FILES = 1 << 20
"""How many descriptors a new process closes if the system reports no limit or a very high one."""


@dataclass
class Found:
    """The rollouts of an output."""

    index: OutputIndex = field(default_factory=OutputIndex)
    columns: defaultdict[str, Columns] = field(default_factory=lambda: defaultdict(Columns))
    """By agent."""
    is_dense: bool = False
    """Whether the file consists of whole lines, one per rollout."""

    def extend(self, other: "Found") -> None:
        self.index.extend(other.index)
        for agent, columns in other.columns.items():
            self.columns[agent].extend(columns)


def recover_output(path: Path, *, part_bytes: int = PART_BYTES) -> tuple[Found, Recovery]:
    """Every rollout of an output, which is repaired first if a killed run left it torn."""
    found, recovery = scan_whole(path, part_bytes=part_bytes), Recovery()
    if found is None:
        recovery = repair_output(path)
        found = _read_part(path, 0, path.stat().st_size)
        assert found is not None, "it was repaired"
    return found, recovery


def scan_whole(path: Path, *, part_bytes: int = PART_BYTES) -> Found | None:
    """Every rollout of an output; None if it must be repaired first."""
    found = scan(path, part_bytes=part_bytes)
    return found if found is not None and found.index.is_unique() else None


def find_rollouts(path: Path, bad_lines: BadLines, *, once: bool = True) -> Found:
    """Every rollout of a file that is only read. `bad_lines` gets each line that is not a rollout.

    With `once` it also gets each line that repeats a key.
    """
    try:
        found = scan(path)
    except OSError:
        found = None  # the error is reported when it is read line by line
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


def scan(path: Path, *, part_bytes: int = PART_BYTES) -> Found | None:
    """All rollouts of a file; None if any line is not a rollout."""
    size = path.stat().st_size
    # A process with threads must not be forked.
    cores = available_cores() if threading.active_count() == 1 else 1
    parts = max(1, min(cores, size // part_bytes, _MOST_PARTS))
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
    """The rollouts whose lines begin in a part of the file; None if any line is not a rollout."""
    index = OutputIndex()
    intakes: defaultdict[str, Intake] = defaultdict(lambda: Intake(Columns()))
    with path.open("rb", READ_BYTES) as file:
        if start:
            file.seek(start - 1)
            file.readline()  # it began in the previous part
        offset = file.tell()
        while offset < end and (lines := file.readlines(_BATCH_BYTES)):
            offsets = list(accumulate(map(len, lines), initial=offset))
            offset = offsets.pop()
            if offset > end:
                offsets = offsets[: bisect_left(offsets, end)]
                lines = lines[: len(offsets)]
            if lines[-1][-1] != _NEWLINE or not _take(lines, offsets, index, intakes):
                return None
    return Found(index, _columns_of(intakes), is_dense=True)


def _take(lines: list[bytes], offsets: list[int], index: OutputIndex, intakes: Mapping[str, Intake]) -> bool:
    """Take the rollouts of some lines; False if a line is not a rollout."""
    records = _parsed_together(lines)
    if records is not None and _take_together(records, offsets, index, intakes):
        return True
    for line, offset in zip(lines, offsets, strict=True):
        try:
            record = decode_json(line)
        except (ValueError, RecursionError):
            return False
        key = key_of(record) if isinstance(record, dict) else None
        if key is None:
            return False
        index.add(key, offset)
        intakes[agent_of(record)].take(*key, record)
    return True


def _parsed_together(lines: list[bytes]) -> list[Record] | None:
    """The object in each line; None if a line is not one object or has a number that is not finite."""
    if not all(line.startswith(b"{") and line.endswith(b"}\n") for line in lines):
        return None
    try:
        records: list[Record] = orjson.loads(b"[%s]" % b",".join(lines))
    except orjson.JSONDecodeError:
        return None
    return records if len(records) == len(lines) else None


def _take_together(
    records: list[Record], offsets: list[int], index: OutputIndex, intakes: Mapping[str, Intake]
) -> bool:
    """Take rollouts that all have keys and agents; if one has not, take nothing and return False."""
    try:
        tasks, rollouts = list(map(_task_of, records)), list(map(_rollout_of, records))
        agents = list(map(_name_of, map(_agent_ref_of, records)))
        names = dict.fromkeys(agents)
    except (KeyError, TypeError):
        return False
    if not are_indices(tasks) or not are_indices(rollouts) or set(map(type, names)) != {str}:
        return False
    index.keys.extend([packed(key) for key in zip(tasks, rollouts, strict=True)])
    index.offsets.extend(offsets)
    if len(names) == 1:
        intakes[agents[0]].take_finite(tasks, rollouts, records)
        return True
    for name in names:
        places = [place for place, agent in enumerate(agents) if agent == name]
        intakes[name].take_some(places, tasks, rollouts, records)
    return True


def _columns_of(intakes: Mapping[str, Intake]) -> defaultdict[str, Columns]:
    return defaultdict(Columns, {agent: intake.columns for agent, intake in intakes.items()})


class _Reader:
    """A process that reads one part."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self._pipe, write_end = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _send_part(write_end, path, start, end)
        os.close(write_end)

    def result(self) -> Found | None:
        """The rollouts of its part; None if reading failed. The process reads one part, so this ends."""
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
    """Runs in the other process. Closes the files of its parent, so that it holds none of its locks."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, descriptor)
        limit = os.sysconf("SC_OPEN_MAX")
        os.closerange(descriptor + 1, limit if 0 < limit < _MOST_FILES else _MOST_FILES)
        with open(descriptor, "wb") as pipe:
            pickle.dump(_read_part(path, start, end), pipe, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)
