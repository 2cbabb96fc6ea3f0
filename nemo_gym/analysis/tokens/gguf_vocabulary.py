"""The vocabulary of a GGUF file: the string and the kind of each token."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.errors import InputError
from nemo_gym.local_engine.gguf_file import read_gguf_file

MAGIC = b"GGUF"
NORMAL, CONTROL, BYTE = 1, 3, 6
"""Kinds of tokens, as numbered by the format."""

_MODEL, _TOKENS, _KINDS = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


@dataclass(frozen=True)
class GgufTokens:
    """The tokens of a model, indexed by id."""

    model: str
    """Encoding of the strings: `gpt2` (one character per byte), `llama` (`▁` for a space), …"""
    tokens: list[bytes]
    kinds: list[int]
    """One per token; empty if the file has none."""


def read_gguf(path: Path) -> GgufTokens:
    """The tokens of a GGUF file."""
    try:
        return _checked(read_gguf_file(path).metadata)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot read a vocabulary from this GGUF file: {error}; give a complete one with "
            f"+tokenizer=<path>, or the model's tokenizer.json"
        ) from error


def _checked(found: dict[str, Any]) -> GgufTokens:
    tokens = found.get(_TOKENS)
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ValueError(f"it has no list {_TOKENS}")
    kinds = found.get(_KINDS, [])
    if len(kinds) not in (0, len(tokens)):
        raise ValueError(f"{_KINDS} has {len(kinds)} entries for {len(tokens)} tokens")
    written = [token.encode(errors="surrogateescape") for token in tokens]
    return GgufTokens(str(found.get(_MODEL, "")), written, kinds)
