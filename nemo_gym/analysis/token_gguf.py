"""The vocabulary that a GGUF file holds: the strings of its tokens, and the kind of each.

Invariant: only the metadata at the head of the file is read, and a file that is cut off or is no GGUF is one
error, however wild the lengths that it names.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.errors import InputError

MAGIC = b"GGUF"
NORMAL, CONTROL, BYTE = 1, 3, 6
"""Kinds of token, by the numbers that the format gives them."""

_MODEL, _TOKENS, _KINDS = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of metadata that have a fixed size."""


@dataclass(frozen=True)
class GgufTokens:
    """The tokens of a model, by their ids."""

    model: str
    """How the strings are written: `gpt2` (a character for each byte), `llama` (`▁` for a space), …"""
    tokens: list[bytes]
    kinds: list[int]
    """One a token; empty where the file does not say."""


def read_gguf(path: Path) -> GgufTokens:
    """The tokens of a GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _Reader(data).find({_MODEL, _TOKENS, _KINDS})
        return _checked(found)
    except (OSError, ValueError, struct.error, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}: no vocabulary can be read from this GGUF file: {error}; name a whole one with "
            f"+tokenizer=<path>, or the model's tokenizer.json"
        ) from error


def _checked(found: dict[str, Any]) -> GgufTokens:
    tokens = found.get(_TOKENS)
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], bytes):
        raise ValueError(f"it has no list {_TOKENS}")
    kinds = found.get(_KINDS, [])
    if len(kinds) not in (0, len(tokens)):
        raise ValueError(f"{_KINDS} has {len(kinds)} entries for {len(tokens)} tokens")
    return GgufTokens(bytes(found.get(_MODEL, b"")).decode(errors="replace"), tokens, kinds)


class _Reader:
    """Goes through the metadata from its beginning."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def find(self, wanted: set[str]) -> dict[str, Any]:
        """The values of these keys, as far as they are there."""
        if self._take(4) != MAGIC:
            raise ValueError("it is no GGUF file")
        (version,) = self._unpack("I", 1)
        if version not in _VERSIONS:
            raise ValueError(f"it has version {version}, and only 2 and 3 (little-endian) can be read")
        _, entries = self._unpack("Q", 2)
        found: dict[str, Any] = {}
        for _ in range(entries):
            if len(found) == len(wanted):
                break
            key = self._string().decode(errors="replace")
            (kind,) = self._unpack("I", 1)
            value = self._value(kind)
            if key in wanted:
                found[key] = value
        return found

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
            raise ValueError(f"it has metadata of the unknown type {kind}")
        return _FORMATS[kind]

    def _string(self) -> bytes:
        return self._take(self._unpack("Q", 1)[0])

    def _unpack(self, letter: str, count: int) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{letter}", self._take(count * struct.calcsize(f"<{letter}")))

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ValueError("it ends in the middle of its metadata")
        taken, self._at = self._data[self._at : end], end
        return taken
