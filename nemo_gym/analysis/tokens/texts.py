"""Texts of token ids: from a given tokenizer, from the rollout itself, or from the bundled model.

Invariant: a text is never guessed. An id that no source knows has no text.
"""

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from nemo_gym.analysis.tokens.gguf_vocabulary import BYTE, CONTROL, MAGIC, NORMAL, read_gguf
from nemo_gym.errors import ConfigError, InputError
from nemo_gym.local_engine.find_weights import find_weights
from nemo_gym.records import Record, parsed
from nemo_gym.types import RESPONSE_KEY_NAME

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""
_ID_AS_TEXT = "token_id:"
"""Prefix of the text of a token if the engine was configured to return ids instead."""
_RECORDED = "the log-probabilities in the rollout"
_BUNDLED_MODEL = "smollm2"


@dataclass(frozen=True)
class Pieces:
    """The bytes of tokens, up to the first unknown one."""

    pieces: list[bytes]
    are_all: bool


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token id."""

    source: str
    """Description of the source, for people."""
    pieces: MutableMapping[int, bytes]
    special: frozenset[int] = field(default_factory=frozenset)
    """Ids of markup such as the end of a turn, as far as the source names them."""

    def known_pieces(self, ids: Sequence[int]) -> Pieces:
        found = [piece for piece in takewhile(_is_known, map(self.pieces.get, ids)) if piece is not None]
        return Pieces(found, len(found) == len(ids))

    def text(self, ids: Sequence[int]) -> str | None:
        """The text of ids; None if one is unknown."""
        known = self.known_pieces(ids)
        return b"".join(known.pieces).decode(errors="replace") if known.are_all else None


def _is_known(piece: bytes | None) -> bool:
    return piece is not None


class TextSources:
    """Finds the vocabulary for a rollout."""

    def __init__(self, tokenizer: Path | None) -> None:
        self._named = None if tokenizer is None else read_vocabulary(tokenizer)
        self._bundled: Vocabulary | None = None

    def vocabulary(self, record: Record, output: Sequence[Any]) -> Vocabulary | None:
        """The best vocabulary for the ids of a rollout; None if there is none."""
        if self._named is not None:
            return self._named
        pieces, bundled = recorded_pieces(output), self._of_model(record)
        if not pieces:
            return bundled
        if bundled is None:
            return Vocabulary(_RECORDED, pieces)
        return Vocabulary(
            f"{_RECORDED}, and {bundled.source}", ChainMap(pieces, bundled.pieces), bundled.special
        )

    def _of_model(self, record: Record) -> Vocabulary | None:
        response = record.get(RESPONSE_KEY_NAME)
        model = response.get("model") if isinstance(response, dict) else None
        if not isinstance(model, str) or _BUNDLED_MODEL not in model.lower():
            return None
        if self._bundled is None and (path := bundled_model()) is not None:
            self._bundled = read_vocabulary(path)
        return self._bundled


def bundled_model() -> Path | None:
    """The GGUF file of the bundled model; None if it is not installed."""
    try:
        return find_weights()
    except ConfigError:
        return None


def recorded_pieces(output: Sequence[Any]) -> dict[int, bytes]:
    """The texts of generated tokens, from the `logprobs` of the output text."""
    pieces: dict[int, bytes] = {}
    for item in output:
        ids = item.get("generation_token_ids") if isinstance(item, dict) else None
        if isinstance(ids, list) and ids:
            texts = [_token_bytes(token) for token in _text_tokens(item)]
            # The text has no end-of-turn token. Any other count leaves the assignment ambiguous.
            if len(texts) in (len(ids), len(ids) - 1):
                pairs = zip(ids, texts, strict=False)
                pieces |= {number: text for number, text in pairs if type(number) is int and text is not None}
    return pieces


def _text_tokens(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    parts = item.get("content")
    for part in parts if isinstance(parts, list) else []:
        tokens = part.get("logprobs") if isinstance(part, dict) else None
        yield from (token for token in tokens if isinstance(token, dict)) if isinstance(tokens, list) else ()


def _token_bytes(token: Mapping[str, Any]) -> bytes | None:
    numbers, text = token.get("bytes"), token.get("token")
    if isinstance(numbers, list) and all(type(number) is int and 0 <= number < 256 for number in numbers):
        return bytes(numbers)
    if isinstance(text, str) and not text.startswith(_ID_AS_TEXT):
        return text.encode(errors="replace")
    return None


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, a `tokenizer.json`, or a folder that contains one."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            is_gguf = opened.read(len(MAGIC)) == MAGIC
        if is_gguf:
            return _from_gguf(file)
        data = parsed(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read: {error.strerror}; +tokenizer= takes a GGUF file, a tokenizer.json or a "
            "folder that contains one"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _no_tokenizer(file, str(error)) from error
    return _from_tokenizer_json(file, data)


def _no_tokenizer(file: Path, reason: str) -> InputError:
    return InputError(
        f"{file}: neither GGUF nor a tokenizer.json: {reason}; give the tokenizer of the model with "
        "+tokenizer=<path>"
    )


def _from_gguf(file: Path) -> Vocabulary:
    found = read_gguf(file)
    kinds = found.kinds or [NORMAL] * len(found.tokens)
    is_byte_level = found.model == "gpt2"
    pieces = {
        number: _piece(token.decode(errors="replace"), is_byte_level) if kind in (NORMAL, BYTE) else token
        for number, (token, kind) in enumerate(zip(found.tokens, kinds, strict=True))
    }
    special = frozenset(number for number, kind in enumerate(kinds) if kind == CONTROL)
    return Vocabulary(str(file), pieces, special)


def _from_tokenizer_json(file: Path, data: Any) -> Vocabulary:
    model = data.get("model") if isinstance(data, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):
        entries = [(entry[0], number) for number, entry in enumerate(vocabulary) if _is_scored(entry)]
    elif isinstance(vocabulary, dict):
        entries = list(vocabulary.items())
    else:
        raise _no_tokenizer(file, "it has no model.vocab")
    is_byte_level = any(_names_byte_level(data.get(part)) for part in ("decoder", "pre_tokenizer"))
    pieces = {number: _piece(str(piece), is_byte_level) for piece, number in entries if type(number) is int}
    added = data.get("added_tokens")
    tokens = [token for token in added if _is_added(token)] if isinstance(added, list) else []
    pieces |= {token["id"]: token["content"].encode(errors="replace") for token in tokens}
    special = frozenset(token["id"] for token in tokens if token.get("special") is True)
    return Vocabulary(str(file), pieces, special)


def _is_scored(entry: Any) -> bool:
    """Whether a list entry is a token with its score."""
    return isinstance(entry, list) and len(entry) > 0


def _is_added(token: Any) -> bool:
    return isinstance(token, dict) and type(token.get("id")) is int and isinstance(token.get("content"), str)


def _names_byte_level(part: Any) -> bool:
    """Whether this tokenizer step, or a step inside it, encodes bytes as characters."""
    if not isinstance(part, dict):
        return False
    inner = [*(part.get("decoders") or []), *(part.get("pretokenizers") or [])]
    return part.get("type") == "ByteLevel" or any(map(_names_byte_level, inner))


def _piece(text: str, is_byte_level: bool) -> bytes:
    """The bytes of a vocabulary entry."""
    if is_byte_level:
        table = _byte_of_character()
        known = [table.get(character, -1) for character in text]
        return text.encode(errors="replace") if -1 in known else bytes(known)
    if match := _BYTE_PIECE.fullmatch(text):
        return bytes([int(match[1], 16)])
    return text.replace(_SPACE, " ").encode(errors="replace")


@cache
def _byte_of_character() -> dict[str, int]:
    """The byte-level encoding: printable bytes as themselves, all others as characters from U+0100."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}
