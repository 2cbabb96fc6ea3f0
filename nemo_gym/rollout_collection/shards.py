"""Rollouts that stand in several files, as one set without copies.

Invariant: of each rollout only its key and its place are held, never the record. After `load` every key is
there once: identical records count once; where others share a key, the task's rollouts are numbered anew.
"""

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.errors import InputError
from nemo_gym.metrics import Columns, numeric_fields
from nemo_gym.records import Key, parsed, read_rollouts
from nemo_gym.types import ROLLOUT_INDEX_KEY_NAME

_MOST_OPEN_FILES = 200


class ShardRollout(NamedTuple):
    """One rollout, read from its shard."""

    key: Key
    agent: str
    line: bytes
    """As it stands in the shard, with another rollout index if it was numbered anew."""


@dataclass
class Settled:
    """What was done to have every key once."""

    copies: int = 0
    """Records that stood there before, identical."""
    renumbered_tasks: int = 0


class Shards:
    """The rollouts of some files, by key."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self.agents: list[str] = []
        """Those that occur, in order of first sight."""
        self._tasks, self._rollouts = array("q"), array("q")
        self._shards, self._offsets, self._lengths = array("q"), array("q"), array("q")
        self._agents = array("q")
        self._order = array("q")
        """Places in the other arrays, sorted by key."""
        self._renumbered = bytearray()
        self._files = _OpenFiles(self.paths)

    def __len__(self) -> int:
        return len(self._order)

    def load(self) -> Settled:
        """Find every rollout; to be called once, before all else."""
        for shard, path in enumerate(self.paths):
            self._index(shard, path)
        self._renumbered = bytearray(len(self._tasks))
        return self._settle()

    def _index(self, shard: int, path: Path) -> None:
        numbers = {agent: number for number, agent in enumerate(self.agents)}
        for line, _, key, agent in read_rollouts(path):
            if agent not in numbers:
                numbers[agent] = len(self.agents)
                self.agents.append(agent)
            self._tasks.append(key.task)
            self._rollouts.append(key.rollout)
            self._shards.append(shard)
            self._offsets.append(line.offset)
            self._lengths.append(len(line.data))
            self._agents.append(numbers[agent])

    def _settle(self) -> Settled:
        """Sort by key, and see to it that every key is there once."""
        settled = Settled()
        places = sorted(range(len(self._tasks)), key=self._rollouts.__getitem__)
        places.sort(key=self._tasks.__getitem__)
        for _, group in groupby(places, self._tasks.__getitem__):
            members = list(group)
            if len({self._rollouts[place] for place in members}) < len(members):
                members = self._settle_task(members, settled)
            self._order.extend(members)
        return settled

    def _settle_task(self, members: list[int], settled: Settled) -> list[int]:
        """The different rollouts of one task, numbered anew if two that differ share a key."""
        kept: list[int] = []
        for _, group in groupby(members, self._rollouts.__getitem__):
            same_key: dict[str, int] = {}
            for place in sorted(group):
                same_key.setdefault(_canonical(self._line(place)), place)
            kept += same_key.values()
        settled.copies += len(members) - len(kept)
        if len({self._rollouts[place] for place in kept}) == len(kept):
            return kept
        settled.renumbered_tasks += 1
        kept.sort(key=lambda place: (self._shards[place], self._rollouts[place], place))
        for number, place in enumerate(kept):
            self._renumbered[place] = self._rollouts[place] != number
            self._rollouts[place] = number
        return kept

    def __iter__(self) -> Iterator[ShardRollout]:
        """Every rollout, sorted by key, read now."""
        return map(self._read, self._order)

    def records(self, agent: str) -> Iterator[dict[str, Any]]:
        """The rollouts of one agent, sorted by key, as data."""
        number = self.agents.index(agent)
        for place in self._order:
            if self._agents[place] == number:
                record: dict[str, Any] = decode_json(self._read(place).line)
                yield record

    def close(self) -> None:
        self._files.close()

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, place: int) -> ShardRollout:
        line, key = self._line(place), Key(self._tasks[place], self._rollouts[place])
        if self._renumbered[place]:
            line = encode_json({**decode_json(line), ROLLOUT_INDEX_KEY_NAME: key.rollout})
        return ShardRollout(key, self.agents[self._agents[place]], line)

    def _line(self, place: int) -> bytes:
        return self._files.read(self._shards[place], self._offsets[place], self._lengths[place]).strip()


def measured(rollouts: Iterable[ShardRollout], columns: Mapping[str, Columns]) -> Iterator[ShardRollout]:
    """The same rollouts; their numbers go into the columns of their agent on the way."""
    for rollout in rollouts:
        columns[rollout.agent].add(*rollout.key, numeric_fields(parsed(rollout.line)))
        yield rollout


def _canonical(line: bytes) -> str:
    """The same text for lines that say the same."""
    return json.dumps(decode_json(line), sort_keys=True)


class _OpenFiles:
    """Reads pieces of many files, of which only some are open at once."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}
        """Descriptors by shard, the one used last at the end."""

    def read(self, shard: int, offset: int, length: int) -> bytes:
        path = self._paths[shard]
        try:
            data = os.pread(self._descriptor(shard), length, offset)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}; aggregate again") from error
        if len(data) < length:
            raise InputError(f"{path}: became shorter meanwhile; aggregate when no run is writing it")
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
