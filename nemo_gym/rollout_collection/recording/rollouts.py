"""The rollouts of an output file as a sequence, sorted by key. Each is read when it is used."""

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from nemo_gym.codec import decode_json
from nemo_gym.errors import InputError
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.records import Key, packed


class OutputIndex:
    """The place of each rollout in the output, 16 bytes per rollout."""

    def __init__(self) -> None:
        self.keys = array("q")
        self.offsets = array("q")

    def add(self, key: Key, offset: int) -> None:
        self.keys.append(packed(key))
        self.offsets.append(offset)

    def extend(self, other: "OutputIndex") -> None:
        self.keys.extend(other.keys)
        self.offsets.extend(other.offsets)

    def is_unique(self) -> bool:
        """Whether no key occurs twice."""
        ordered = np.sort(np.frombuffer(self.keys, np.int64)) if self.keys else np.empty(0)
        return not bool((ordered[1:] == ordered[:-1]).any())

    def sorted_offsets(self) -> "array[int]":
        keys = self.keys
        return array("q", (self.offsets[place] for place in sorted(range(len(keys)), key=keys.__getitem__)))


class Rollouts(Sequence[dict[str, Any]]):
    """Like a list of dictionaries, each of which is read from the file when it is used."""

    def __init__(self, path: Path, offsets: "array[int]", place: Path | None = None) -> None:
        self.path = path
        self.place = place or path.absolute()
        """The same, in whatever working directory the program is later."""
        self._offsets = offsets
        self._identity = _identity(self.place)

    @property
    def offsets(self) -> "array[int]":
        """Where each rollout begins in the file, in the order of the sequence."""
        return self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [decode_json(line) for line in self.read_lines(self._offsets[index])]
        rollout: dict[str, Any] = decode_json(next(self.read_lines([self._offsets[index]])))
        return rollout

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(decode_json, self.read_lines(self._offsets))

    def lines(self) -> "RolloutLines":
        """The same, as lines of bytes."""
        return RolloutLines(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # unhashable like a list, which it equals

    def __repr__(self) -> str:
        return f"<{len(self)} rollouts in {self.path}>"

    def read_lines(self, offsets: Sequence[int] | None = None) -> Iterator[bytes]:
        """The lines at these offsets, by default those of all rollouts, without line ends."""
        offsets = self._offsets if offsets is None else offsets
        if not offsets:
            return
        with self.place.open("rb") as file:
            if _identity(file.fileno()) != self._identity:
                raise InputError(
                    f"{self.path} has changed since these rollouts were read: a later run replaced or "
                    "repaired it. The earlier file may be beside it under another name; to read the present "
                    "one, run again with resume_from_cache=true"
                )
            for offset in offsets:
                file.seek(offset)
                yield file.readline().rstrip(b"\n")


@dataclass(frozen=True)
class RolloutLines:
    """The lines of rollouts, sorted by key; every iteration reads them again."""

    rollouts: Rollouts

    def __iter__(self) -> Iterator[bytes]:
        return self.rollouts.read_lines()


def _identity(file: Path | int) -> tuple[int, int]:
    about = os.stat(file)
    return about.st_dev, about.st_ino
