import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.local_engine import find_weights
from nemo_gym.local_engine.gguf_file import read_gguf_file


def test_header_has_the_metadata_and_the_positions_of_tensors() -> None:
    file = read_gguf_file(find_weights())
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["tokenizer.ggml.tokens"][1:3] == ["<|im_start|>", "<|im_end|>"]
    assert len(file.metadata) == file.entry_count == 33
    embedding = file.tensors[0]
    assert (embedding.name, embedding.shape) == ("token_embd.weight", (49152, 576))
    assert len(file.tensors) == 272
    assert all(place.offset % file.alignment == 0 for place in file.tensors)
    last = file.tensors[-1]
    assert last.name == "output_norm.weight"
    assert last.offset + 4 * last.shape[0] == find_weights().stat().st_size


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"no weights at all", "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**63), "ends within its header"),
    ],
)
def test_invalid_file_is_an_error_that_names_it(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"bad\.gguf: cannot be read.*{problem}"):
        read_gguf_file(file)


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_read_or_rejected(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "any.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + content)
    with pytest.raises(ValueError, match=r"any\.gguf: cannot be read"):
        read_gguf_file(file)
