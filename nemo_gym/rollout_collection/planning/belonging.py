"""Whether the rollouts in an output belong to a plan: each has its key, its agent and its input there.

An agent may add to the input that it records, so an input belongs if it contains the texts of the planned
one. What a record does not contain is not compared.
"""

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.records import Record, agent_of, key_of, parsed, unpacked
from nemo_gym.rollout_collection.planning.remaining import read_plan
from nemo_gym.rollout_collection.recording.manifest import differences
from nemo_gym.rollout_collection.recording.rollouts import OutputIndex
from nemo_gym.types import AGENT_REF_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME

_BATCH = 1024
_MOST_BYTES = 8 << 20
"""Read at once: rollouts that are near each other in the plan are mostly so in the output, too."""
_AGENT = b'"%s":{' % AGENT_REF_KEY_NAME.encode()
_TEXT = re.compile(rb'"(?:input|content|text|output|arguments)":("[^"\\]*(?:\\.[^"\\]*)*")')
_SHORT = 16
"""Bytes of a text that may occur in a record by chance."""
_TEXT_KEYS = ("content", "text", "output", "arguments")


class Stray(NamedTuple):
    """A rollout that does not belong to the plan."""

    offset: int
    """Of its line in the output."""
    reason: str


def strays(output: Path, index: OutputIndex, plan: Path) -> list[Stray]:
    """The rollouts of the output that do not belong to the plan, in the order of the output."""
    if not index.keys:
        return []
    found = []
    with _Records(output, index) as records:
        lines = read_plan(plan)
        while batch := list(islice(lines, _BATCH)):
            for offset, planned, record in records.matching(batch):
                if not _is_alike(planned, record) and (reason := _difference(planned, record)) is not None:
                    found.append(Stray(offset, reason))
        found += records.others()
    return sorted(found)


class _Records:
    """The lines of an output, by key."""

    def __init__(self, output: Path, index: OutputIndex) -> None:
        self._file = os.open(output, os.O_RDONLY | os.O_CLOEXEC)
        keys = np.frombuffer(index.keys, np.int64)
        order = np.argsort(keys)
        self._keys = keys[order]
        offsets = np.frombuffer(index.offsets, np.int64)
        self._starts = offsets[order]
        self._ends = np.append(offsets[1:], os.fstat(self._file).st_size)[order]
        self._is_planned = np.zeros(len(keys), bool)

    def matching(self, batch: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes, bytes]]:
        """Offset, planned line and recorded line of the rollouts that are in the output."""
        wanted = np.array([key for key, _ in batch], np.int64)
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        is_found = self._keys[places] == wanted
        places = places[is_found]
        self._is_planned[places] = True
        planned = [batch[number][1] for number in np.flatnonzero(is_found).tolist()]
        starts, ends = self._starts[places].tolist(), self._ends[places].tolist()
        return zip(starts, planned, self._read(starts, ends), strict=True)

    def _read(self, starts: list[int], ends: list[int]) -> Iterable[bytes]:
        spans = zip(starts, ends, strict=True)
        if starts and max(ends) - (first := min(starts)) <= _MOST_BYTES:
            data = os.pread(self._file, max(ends) - first, first)
            return (data[start - first : end - first] for start, end in spans)
        return (os.pread(self._file, end - start, start) for start, end in spans)

    def others(self) -> Iterator[Stray]:
        """The rollouts that were not in any batch."""
        for place in np.flatnonzero(~self._is_planned).tolist():
            key = unpacked(int(self._keys[place]))
            yield Stray(int(self._starts[place]), f"rollout {key} is not in the plan")

    def __enter__(self) -> "_Records":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def _is_alike(planned: bytes, record: bytes) -> bool:
    """Whether the record has the agent and the texts, as bytes. False means only that this is not known."""
    agent = planned.find(_AGENT)
    if agent < 0 or planned[agent : planned.find(b"}", agent) + 1] not in record:
        return False
    texts = _TEXT.findall(planned)
    return len(texts) > 0 and all(len(text) > _SHORT and text in record for text in texts)


def _difference(planned: bytes, recorded: bytes) -> str | None:
    """How a recorded rollout differs from the planned one; None if it belongs to it."""
    row, record = parsed(planned), parsed(recorded.partition(b"\n")[0])
    if agent_of(record) not in ("", agent_of(row)):
        changed = differences({"agent": agent_of(record)}, {"agent": agent_of(row)})
    else:
        was, is_now = _input_of(record), _input_of(row)
        if was is None or set(_texts(is_now)) <= set(_texts(was)):
            return None
        changed = differences({"input": was}, {"input": is_now})
    key = key_of(record)
    return f"rollout {key} differs from the plan: {'; '.join(changed)}"


def _input_of(row: Record) -> Any:
    params = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    return params.get("input") if isinstance(params, dict) else None


def _texts(value: Any) -> Iterator[str]:
    """The texts of an input, which may be one text, or a list of messages and other items."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key in _TEXT_KEYS:
            yield from _texts(value.get(key))
