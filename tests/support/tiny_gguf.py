"""Writes a GGUF file of a two-layer Llama with random weights, which transformers and llama.cpp can read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ Ġ", "h e", "l l", "he ll", "hell o"]
TOKENS = [*SPECIAL, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]
HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
Kind = gguf.GGMLQuantizationType


def write_tiny_gguf(
    file: Path,
    *,
    kind: Kind = Kind.F32,
    is_tied: bool = True,
    architecture: str = "llama",
    more_tensors: Mapping[str, tuple[int, ...]] | None = None,
    more_metadata: Mapping[str, str] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(file, architecture)
    _write_metadata(writer)
    for key, value in (more_metadata or {}).items():
        writer.add_string(key, value)
    shapes = _shapes() | ({} if is_tied else {"output.weight": (len(TOKENS), HIDDEN)})
    random = np.random.default_rng(0)
    for name, shape in (shapes | dict(more_tensors or {})).items():
        weight = random.standard_normal(shape, np.float32) * np.float32(0.3)
        is_matrix = len(shape) > 1
        written = quantize(weight, kind) if is_matrix else weight + np.float32(1)
        writer.add_tensor(name, written, raw_dtype=kind if is_matrix else Kind.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_metadata(writer: Any) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")


def _shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    block = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    blocks = {f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in block.items()}
    return {"token_embd.weight": (len(TOKENS), HIDDEN), **blocks, "output_norm.weight": (HIDDEN,)}
