"""Finds single rollouts in a file. It may be large: memory holds the keys, places and numbers only.

Lines that are not rollouts are skipped and listed. A file without any keys, as old ones are, is numbered.
"""

import random
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path

from nemo_gym.analysis.transcript import output_items
from nemo_gym.codec import decode_json, encode_json
from nemo_gym.errors import InputError, JournalError
from nemo_gym.failures import FailureKind
from nemo_gym.metrics import Columns, Intake
from nemo_gym.metrics.columns import REWARD
from nemo_gym.path_utils import failures_path_for, materialized_path_for
from nemo_gym.records import BadLines, Key, Record, agent_of, key_of, packed, parsed, read_records, unpacked
from nemo_gym.rollout_collection.planning.remaining import read_plan
from nemo_gym.rollout_collection.recording.rollouts import OutputIndex
from nemo_gym.rollout_collection.recording.scan import scan
from nemo_gym.terminal import one_line
from nemo_gym.types import NG_FAILURE_CLASS_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

_SEARCHED_FOR_TOOLS = 1000
"""Rollouts that are searched for the names of tools, to list them in an error message."""
_MOST_NAMED = 10


@dataclass
class RolloutFile:
    """The rollouts of a file."""

    path: Path
    index: OutputIndex = field(default_factory=OutputIndex)
    columns: Mapping[str, Columns] = field(default_factory=dict)
    """By agent; "" if a rollout names none."""
    bad_lines: BadLines = field(default_factory=lambda: BadLines(are_skipped=True))
    is_numbered: bool = False
    """Whether the rollouts have no keys and are numbered instead, each as a task."""

    @classmethod
    def read(cls, path: Path) -> "RolloutFile":
        if path.is_dir():
            raise InputError(f"{path}: a folder; give a rollouts file in it")
        try:
            found = scan(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}; check its name") from error
        file = cls(path)
        if found is not None:
            file.index, file.columns = found.index, found.columns
        else:
            file._read_line_by_line()
        return file

    def _read_line_by_line(self) -> None:
        intakes: dict[str, Intake] = {}
        for number, (line, record) in enumerate(read_records(self.path, self.bad_lines)):
            if not number:
                self.is_numbered = key_of(record) is None
            key = Key(number, 0) if self.is_numbered else key_of(record)
            if key is None:
                place = f"{self.path}:{line.number}"
                self.bad_lines.take(InputError(f"{place}: has no key, unlike the lines before it"))
                continue
            self.index.add(key, line.offset)
            intakes.setdefault(agent_of(record), Intake(Columns())).take(*key, record)
        self.columns = {agent: intake.columns for agent, intake in intakes.items()}

    def __len__(self) -> int:
        return len(self.index.keys)

    @property
    def tasks(self) -> int:
        return len({unpacked(key).task for key in self.index.keys})

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and packed(key) in self.index.keys

    def rollouts(self, keys: Iterable[Key]) -> Iterator[Record]:
        """The rollouts with these keys, which are in the file."""
        places = [self.index.keys.index(packed(key)) for key in keys]
        return (self._record(key, line) for key, line in self._lines(places))

    def _lines(self, places: Iterable[int]) -> Iterator[tuple[Key, bytes]]:
        """The lines at some places of the index."""
        with self.path.open("rb") as file:
            for place in places:
                file.seek(self.index.offsets[place])
                yield unpacked(self.index.keys[place]), file.readline()

    def _record(self, key: Key, line: bytes) -> Record:
        record: Record = decode_json(line)
        return {**record, TASK_INDEX_KEY_NAME: key.task, ROLLOUT_INDEX_KEY_NAME: key.rollout}

    def of_task(self, task: int) -> list[Key]:
        first = packed(Key(task, 0))
        end = packed(Key(task + 1, 0))
        return [unpacked(key) for key in sorted(key for key in self.index.keys if first <= key < end)]

    def first(self, number: int) -> list[Key]:
        return [unpacked(key) for key in nsmallest(number, self.index.keys)]

    def worst(self, number: int) -> list[Key]:
        """The keys with the lowest rewards."""
        return [unpacked(key) for _, key in nsmallest(number, self._rewards())]

    def best(self, number: int) -> list[Key]:
        return [
            unpacked(key) for _, key in nsmallest(number, ((-reward, key) for reward, key in self._rewards()))
        ]

    def _rewards(self) -> Iterator[tuple[float, int]]:
        for columns in self.columns.values():
            keys = zip(columns.tasks, columns.rollouts, strict=True)
            for reward, key in zip(columns.values(REWARD), keys, strict=True):
                if reward == reward:
                    yield reward, packed(key)

    def sample(self, number: int) -> list[Key]:
        """Keys drawn at random, sorted."""
        return [unpacked(key) for key in sorted(random.sample(self.index.keys, min(number, len(self))))]

    def calling(self, tool: str, most: int) -> list[Key]:
        """The first rollouts of the file that call a tool."""
        spelt = encode_json(tool) if tool.isascii() else b""  # otherwise it may be written with escapes
        found = []
        for key, line in self._lines(range(len(self))):
            if spelt in line and tool in _tools_of(decode_json(line)):
                found.append(key)
                if len(found) == most:
                    break
        if not found:
            called = self._tools() or "none"
            raise InputError(
                f"{self.path}: no rollout calls the tool {tool!r}; tools that are called: {called}"
            )
        return found

    def _tools(self) -> str:
        lines = self._lines(range(min(len(self), _SEARCHED_FOR_TOOLS)))
        seen = Counter(name for _, line in lines for name in _tools_of(decode_json(line)))
        return ", ".join(one_line(name) for name, _ in seen.most_common(_MOST_NAMED))


def _tools_of(record: Record) -> set[str]:
    return {item.name for item in output_items(record) if item.type == "function_call" and item.name}


class Failures:
    """The failures beside a rollouts file: for each key that has no rollout, its last one.

    Rollouts that were cancelled when a run was stopped have not failed.
    """

    def __init__(self, output: Path, done: Container[Key] = ()) -> None:
        self.path = failures_path_for(output)
        self._plan = materialized_path_for(output)
        self._offsets: dict[int, int] = {}
        if not self.path.exists():
            return
        for line, record in read_records(self.path, BadLines(are_skipped=True)):
            key = key_of(record)
            is_cancelled = record.get(NG_FAILURE_CLASS_KEY) == FailureKind.CANCELLED
            if key is not None and key not in done and not is_cancelled:
                self._offsets[packed(key)] = line.offset

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and packed(key) in self._offsets

    def sorted_keys(self) -> list[Key]:
        return [unpacked(key) for key in sorted(self._offsets)]

    def records(self, keys: Iterable[Key]) -> Iterator[Record]:
        with self.path.open("rb") as file:
            for key in keys:
                file.seek(self._offsets[packed(key)])
                yield decode_json(file.readline())

    def rows(self, keys: Iterable[Key]) -> dict[Key, Record]:
        """The materialized inputs with these keys, as far as they can be read."""
        wanted, rows = {packed(key) for key in keys}, {}
        try:
            for key, line in read_plan(self._plan):
                if key in wanted:
                    rows[unpacked(key)] = parsed(line)
                    wanted.discard(key)
                if not wanted:
                    break
        except (OSError, JournalError):
            pass  # failures are shown without their inputs
        return rows
