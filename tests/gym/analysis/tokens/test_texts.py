"""Vocabularies: the tokens in a GGUF file or a tokenizer.json."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.tokens.texts import read_vocabulary
from nemo_gym.errors import InputError


def gguf(tokens: Sequence[bytes], kinds: Sequence[int] | None, model: bytes, *, version: int = 3) -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    entries = [
        text(b"general.alignment") + struct.pack("<II", 4, 32),
        text(b"general.tags") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 8, 1) + text(b"x"),
        text(b"tokenizer.ggml.model") + struct.pack("<I", 8) + text(model),
        text(b"tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, len(tokens))
        + b"".join(text(token) for token in tokens),
    ]
    if kinds is not None:
        numbers = struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds)
        entries.append(text(b"tokenizer.ggml.token_type") + numbers)
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + b"".join(entries)


@pytest.mark.parametrize(
    ("model", "tokens", "kinds", "text"),
    [
        ("gpt2", ["<|im_end|>", "Hi", "Ġthere", "Ċ", "Ã", "©"], [3, 1, 1, 1, 1, 1], "<|im_end|>Hi there\né"),
        ("gpt2", ["Hi", "Ġthere"], None, "Hi there"),
        ("llama", ["</s>", "▁Hi", "<0x0A>", "<0xC3>", "<0xA9>"], [3, 1, 6, 6, 6], "</s> Hi\né"),
    ],
)
def test_gguf_file_contains_the_texts_of_its_tokens(
    tmp_path: Path, model: str, tokens: list[str], kinds: list[int] | None, text: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([token.encode() for token in tokens], kinds, model.encode()))
    vocabulary = read_vocabulary(path)
    assert vocabulary.text(range(len(tokens))) == text
    assert vocabulary.special == ({0} if kinds else set())
    assert vocabulary.text([0, 99]) is None


WHOLE = gguf([b"a", b"b"], [1, 1], b"gpt2")


@pytest.mark.parametrize(
    "content",
    [
        *(WHOLE[:size] for size in range(4, len(WHOLE), 7)),
        gguf([b"a"], [1], b"gpt2", version=1),
        gguf([], None, b"gpt2"),
        gguf([b"a", b"b"], [1], b"gpt2"),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
        b"GGUF"
        + struct.pack("<IQQQ", 3, 0, 1, 1)
        + b"k"
        + struct.pack("<I", 9)
        + struct.pack("<IQ", 9, 1) * 5000,
    ],
)
def test_broken_gguf_file_is_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model.gguf: cannot read a vocabulary .*\+tokenizer="):
        read_vocabulary(path)


def test_tokenizer_is_found_in_its_folder_with_its_special_tokens(tmp_path: Path) -> None:
    added = [{"id": 1, "content": "<|im end|>", "special": True}, {"id": 2, "content": "<think>"}]
    data = {"model": {"vocab": {"ĠHi": 0}}, "pre_tokenizer": {"type": "ByteLevel"}, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.text([2, 0, 1]) == "<think> Hi<|im end|>"
    assert vocabulary.special == {1}


@pytest.mark.parametrize(
    ("model", "decoder"),
    [
        ({"vocab": [["▁Hi", -1.0], ["<0x0A>", 0.0]]}, {"type": "Metaspace"}),
        ({"vocab": {"▁Hi": 0, "<0x0A>": 1}}, {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}),
        ({"vocab": {"ĠHi": 0, "Ċ": 1}}, {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}),
    ],
)
def test_the_kinds_of_tokenizer_json_are_read(tmp_path: Path, model: Any, decoder: Any) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": model, "decoder": decoder, "added_tokens": [3, {"id": "x"}]}))
    assert read_vocabulary(path).text([0, 1]) == " Hi\n"


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"model": {}}', '{"model": {"vocab": 3}}'])
def test_file_that_is_not_a_tokenizer_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"tokenizer.json: neither GGUF nor a tokenizer.json.*\+tokenizer="):
        read_vocabulary(path)


def test_missing_tokenizer_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone: cannot be read: No such file.*takes a GGUF file"):
        read_vocabulary(tmp_path / "gone")
    with pytest.raises(InputError, match=r"tokenizer.json: cannot be read"):
        read_vocabulary(tmp_path)
