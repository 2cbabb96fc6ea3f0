"""Rollouts in several files, as one set without copies.

Invariant: memory holds the key, the place and the numbers of each rollout, never the record. Every key occurs
once: identical records count once; if different ones share a key, the rollouts of the task are renumbered.
"""

import json
import os
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.errors import InputError, JournalError
from nemo_gym.journal import line_numbers
from nemo_gym.metrics import Columns, Intake
from nemo_gym.metrics.copied_numbers import count_copied
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.path_utils import materialized_path_for
from nemo_gym.records import BadLines, Key, agent_of, packed, parsed, unpacked
from nemo_gym.rollout_collection.planning.remaining import planned_rows
from nemo_gym.rollout_collection.recording.scan import find_rollouts
from nemo_gym.types import ROLLOUT_INDEX_KEY_NAME

if TYPE_CHECKING:
    from nemo_gym.metrics.statistics import Places

_MOST_OPEN_FILES = 200
_PIECE_BYTES = 1 << 20


class ShardRollout(NamedTuple):
    """One rollout, read from its shard."""

    key: Key
    line: bytes
    """As in the shard, with another rollout index if it was renumbered."""


@dataclass
class Duplicates:
    """What was done about keys that occur more than once."""

    copies: int = 0
    """Identical records, which count once."""
    renumbered_tasks: int = 0
    repeated: dict[int, int] = field(default_factory=dict)
    """Places of rollouts whose key occurs earlier in the same shard, with that earlier place."""


@dataclass
class Shards:
    """The rollouts of some files, sorted by key."""

    paths: list[Path]
    bad_lines: BadLines = field(default_factory=BadLines)
    columns: defaultdict[str, Columns] = field(default_factory=lambda: defaultdict(Columns))
    """The numbers of each agent, in the order of its first rollout."""
    duplicates: Duplicates = field(default_factory=Duplicates)
    found_by_agent: list[Counter[str]] = field(default_factory=list)
    """How many rollouts each shard contains."""
    at_end: Callable[[], None] = lambda: None
    """Called when the files are closed."""

    def __post_init__(self) -> None:
        self._keys, self._offsets = array("q"), array("q")
        self._first_places: list[int] = []
        """Of each shard, in the two arrays; then the length of the arrays."""
        self._sizes: list[int] = []
        """Of each shard, in bytes."""
        self._order: Places | list[int] = []
        """Places in the arrays, sorted by key."""
        self._renumbered: set[int] = set()
        self._is_sorted_file = False
        """Whether there is one file, which is what would be written."""
        self._files = _OpenFiles(self.paths)

    def __len__(self) -> int:
        return len(self._order)

    def load(self) -> Duplicates:
        """Find every rollout. Call this once, before anything else."""
        is_dense = True
        for path in self.paths:
            found = find_rollouts(path, self.bad_lines, once=self.bad_lines.are_skipped)
            self._sizes.append(path.stat().st_size)
            is_dense = is_dense and found.is_dense
            self._first_places.append(len(self._keys))
            self._keys.extend(found.index.keys)
            self._offsets.extend(found.index.offsets)
            self.found_by_agent.append(Counter())
            _count_copied(path, found.columns)
            for agent, columns in found.columns.items():
                self.columns[agent].extend(columns)
                self.found_by_agent[-1][agent] = len(columns)
        self._first_places.append(len(self._keys))
        keys = np.frombuffer(self._keys, np.int64)
        self._order = np.argsort(keys, kind="stable")
        ordered = keys[self._order]
        self._is_sorted_file = is_dense and len(self.paths) == 1 and bool((keys == ordered).all())
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            self._resolve(self._order.tolist(), {unpacked(key).task for key in repeated.tolist()})
        return self.duplicates

    def _resolve(self, places: list[int], tasks: set[int]) -> None:
        """Make every key of these tasks unique."""
        order: list[int] = []
        for task, group in groupby(places, lambda place: unpacked(self._keys[place]).task):
            members = list(group)
            order += self._resolve_task(members) if task in tasks else members
        order.sort(key=self._keys.__getitem__)
        self._order = order
        self._is_sorted_file = False
        self._measure_again()

    def _resolve_task(self, members: list[int]) -> list[int]:
        """The different rollouts of one task, renumbered if two that differ share a key."""
        kept: list[int] = []
        for _, group in groupby(members, self._keys.__getitem__):
            same_key: dict[str, int] = {}
            in_shard: dict[int, int] = {}
            for place in sorted(group):
                same_key.setdefault(_canonical(self._line(place)), place)
                first = in_shard.setdefault(self._shard(place), place)
                if first != place:
                    self.duplicates.repeated[place] = first
            kept += same_key.values()
        self.duplicates.copies += len(members) - len(kept)
        if len({self._keys[place] for place in kept}) == len(kept):
            return kept
        self.duplicates.renumbered_tasks += 1
        kept.sort(key=lambda place: (self._shard(place), self._keys[place], place))
        for number, place in enumerate(kept):
            key = unpacked(self._keys[place])
            if key.rollout != number:
                self._renumbered.add(place)
                self._keys[place] = packed(Key(key.task, number))
        return kept

    def _measure_again(self) -> None:
        """Compute the numbers of the remaining rollouts, under their new keys."""
        intakes = {agent: Intake(Columns()) for agent in self.columns}
        for rollout in self:
            record = parsed(rollout.line)
            intakes[agent_of(record)].take(*rollout.key, record)
        for agent, intake in intakes.items():
            intake.columns.mark_copied(self.columns[agent].copied_names())
        self.columns = defaultdict(Columns, {agent: intake.columns for agent, intake in intakes.items()})

    def repeated_lines(self, most: int) -> list[str]:
        """Messages about keys that occur earlier in the same shard, at most this many."""
        texts = []
        for place, first in list(self.duplicates.repeated.items())[:most]:
            path, offset, earlier = self.paths[self._shard(place)], self._offsets[place], self._offsets[first]
            lines = line_numbers(path, (offset, earlier))
            texts.append(f"{path}:{lines[offset]}: repeats the key of line {lines[earlier]}")
        return texts

    def __iter__(self) -> Iterator[ShardRollout]:
        """Every rollout, sorted by key and read from its file."""
        return map(self._read, self._order)

    def lines(self) -> Iterator[bytes]:
        """The same as whole lines; a single sorted shard comes in larger pieces."""
        if not self._is_sorted_file:
            yield from (rollout.line + b"\n" for rollout in self)
            return
        for offset in range(0, self._sizes[0], _PIECE_BYTES):
            yield self._files.read(0, offset, min(offset + _PIECE_BYTES, self._sizes[0]))

    def records(self, agent: str) -> Iterator[dict[str, Any]]:
        """The rollouts of one agent, sorted by key, as data."""
        for rollout in self:
            record: dict[str, Any] = decode_json(rollout.line)
            if agent_of(record) == agent:
                yield record

    def close(self) -> None:
        self._files.close()
        self.at_end()

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, place: int) -> ShardRollout:
        line, key = self._line(place), unpacked(self._keys[place])
        if place in self._renumbered:
            line = encode_json({**decode_json(line), ROLLOUT_INDEX_KEY_NAME: key.rollout})
        return ShardRollout(key, line)

    def _shard(self, place: int) -> int:
        return bisect_right(self._first_places, place) - 1

    def _line(self, place: int) -> bytes:
        """Up to the next rollout that counts: skipped lines may be between them."""
        shard = self._shard(place)
        is_last = place + 1 == self._first_places[shard + 1]
        end = self._sizes[shard] if is_last else self._offsets[place + 1]
        return self._files.read(shard, self._offsets[place], end).partition(b"\n")[0].strip()


@dataclass(frozen=True)
class ShardLines:
    """The lines of shards, sorted by key; every iteration reads them again."""

    shards: Shards

    def __iter__(self) -> Iterator[bytes]:
        return (rollout.line for rollout in self.shards)


def _count_copied(path: Path, columns: Mapping[str, Columns]) -> None:
    """Compare the numbers with those of the rows, if the materialized inputs are beside the shard."""
    with suppress(OSError, JournalError):
        count_copied(columns, planned_rows(materialized_path_for(path)))


def _canonical(line: bytes) -> str:
    """The same text for lines with the same content."""
    return json.dumps(decode_json(line), sort_keys=True)


class _OpenFiles:
    """Reads pieces of many files, only some of which are open at once."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}
        """Descriptors by shard, the most recently used one last."""

    def read(self, shard: int, start: int, end: int) -> bytes:
        path, length = self._paths[shard], end - start
        try:
            data = os.pread(self._descriptor(shard), length, start)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read: {error.strerror}; check it, then run ng_aggregate_rollouts again"
            ) from error
        if len(data) < length:
            raise InputError(
                f"{path}: it became shorter while it was read; run ng_aggregate_rollouts again when no run "
                "is writing it"
            )
        return data

    def _descriptor(self, shard: int) -> int:
        descriptor = self._open.pop(shard, None)
        if descriptor is None:
            if len(self._open) >= _MOST_OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            descriptor = os.open(self._paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        self._open[shard] = descriptor
        return descriptor

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
