"""Reads the header of a GGUF file: its metadata and the positions of its tensors.

Invariant: a file that is truncated, corrupt or not a GGUF file raises ValueError, whatever lengths are in it.
Tensor data is never read here.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Metadata types of fixed size, with their struct formats."""


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as in torch; the file has the opposite order."""
    kind: int
    """The ggml number of its data type."""
    offset: int
    """From the start of the file."""


@dataclass(frozen=True)
class GgufFile:
    """The header of a file."""

    path: Path
    metadata: dict[str, Any]
    """Strings that are not UTF-8 (tokens may be such) keep their bytes as surrogates."""
    entries: bytes
    """The metadata as raw bytes of the file."""
    entry_count: int
    tensors: list[TensorPlace]
    alignment: int
    """Alignment of the tensors, in bytes."""


def read_gguf_file(path: Path) -> GgufFile:
    """The header of a file. ValueError: the file cannot be parsed; OSError: it cannot be opened."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).head(path)
    except (ValueError, struct.error, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path}: cannot be read as a GGUF file: {error}") from error


class _Reader:
    """Reads the header from its start."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def head(self, path: Path) -> GgufFile:
        if self._take(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        (version,) = self._unpack("I", 1)
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not supported, only 2 and 3 (little-endian)")
        tensor_count, entry_count = self._unpack("Q", 2)
        begin = self._at
        metadata = dict(self._entry() for _ in range(entry_count))
        entries = self._data[begin : self._at]
        tensors = [self._tensor() for _ in range(tensor_count)]
        alignment = metadata.get(_ALIGNMENT, 32)
        first = -(-self._at // alignment) * alignment
        placed = [TensorPlace(t.name, t.shape, t.kind, first + t.offset) for t in tensors]
        return GgufFile(path, metadata, entries, entry_count, placed, alignment)

    def _entry(self) -> tuple[str, Any]:
        key = self._string()
        (kind,) = self._unpack("I", 1)
        return key, self._value(kind)

    def _tensor(self) -> TensorPlace:
        name = self._string()
        (dimensions,) = self._unpack("I", 1)
        shape = self._unpack("Q", dimensions)[::-1]
        (kind,), (offset,) = self._unpack("I", 1), self._unpack("Q", 1)
        return TensorPlace(name, shape, kind, offset)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack(self._format(kind), 1)[0]
        (kind,), (count,) = self._unpack("I", 1), self._unpack("Q", 1)
        if kind in (_STRING, _ARRAY):
            read: Callable[[], Any] = self._string if kind == _STRING else lambda: self._value(_ARRAY)
            return [read() for _ in range(count)]
        return list(self._unpack(self._format(kind), count))

    def _format(self, kind: int) -> str:
        if kind not in _FORMATS:
            raise ValueError(f"its metadata has the unknown type {kind}")
        return _FORMATS[kind]

    def _string(self) -> str:
        return self._take(self._unpack("Q", 1)[0]).decode(errors="surrogateescape")

    def _unpack(self, letter: str, count: int) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{letter}", self._take(count * struct.calcsize(f"<{letter}")))

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ValueError("it ends within its header")
        taken, self._at = self._data[self._at : end], end
        return taken
