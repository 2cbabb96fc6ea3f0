"""Values of overrides: Hydra's override grammar, with a short cut for plain values.

Hydra's parser takes a tenth of a second to import and about a millisecond per value.
"""

import re
from dataclasses import dataclass
from typing import Any

from nemo_gym.undocumented.hydra_internals import override_value

_WORD = r"(?:\.{0,2}/)?[A-Za-z_][A-Za-z0-9_./-]*"
_INT = r"[+-]?(?:0|[1-9][0-9]{0,17})"
_PLAIN_WORD = re.compile(_WORD)
_PLAIN_INT = re.compile(_INT)
_PLAIN_FLOAT = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,18}")
_PLAIN_ADDRESS = re.compile(r"https?://[A-Za-z0-9_./:-]*")
_PLAIN_LIST = re.compile(rf"\[(?:{_WORD}|{_INT})(?:,(?:{_WORD}|{_INT}))*\]")
_PLAIN_COMMAS = re.compile(rf"(?:{_WORD}|{_INT})(?:,(?:{_WORD}|{_INT}))+")
_NAMED: dict[str, Any] = {"true": True, "false": False, "null": None}
_NAMED_FLOATS = ("nan", "inf")


@dataclass(frozen=True)
class Parsed:
    value: Any
    literal: bool = False
    """Whether the value is the text itself, because the grammar rejects it or reads it as a sweep."""


def parse_value(text: str) -> Parsed:
    """The value of a text according to the grammar."""
    return parse_plain(text) or parse_by_grammar(text)


def parse_plain(text: str) -> Parsed | None:
    """The same for plain words, numbers and lists of them; None if the parser is needed."""
    scalar = _plain_scalar(text)
    if scalar is not None:
        return scalar
    if _PLAIN_LIST.fullmatch(text):
        items = [_plain_scalar(item) for item in text[1:-1].split(",")]
        return None if None in items else Parsed([item.value for item in items if item])
    if _PLAIN_COMMAS.fullmatch(text):
        return Parsed(text, literal=True)
    return Parsed(text) if _PLAIN_ADDRESS.fullmatch(text) else None


def parse_by_grammar(text: str) -> Parsed:
    try:
        return Parsed(override_value(text))
    except ValueError:
        return Parsed(text, literal=True)


def is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] and text[0] in "'\""


def _plain_scalar(text: str) -> Parsed | None:
    lowered = text.lower()
    if lowered in _NAMED:
        return Parsed(_NAMED[lowered])
    if lowered in _NAMED_FLOATS:
        return None
    if _PLAIN_WORD.fullmatch(text):
        return Parsed(text)
    if _PLAIN_INT.fullmatch(text):
        return Parsed(int(text))
    return Parsed(float(text)) if _PLAIN_FLOAT.fullmatch(text) else None
