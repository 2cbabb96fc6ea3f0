"""Conversion of Llama models between transformers and GGUF: names, shapes, rotary layout.

Invariant: `to_gguf` is the inverse of `from_gguf`, for each tensor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nemo_gym.errors import ConfigError
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import transformers

    from nemo_gym.local_engine.gguf_file import GgufFile
    from nemo_rl.models.weights.dequantize import Weights
else:
    transformers = lazy("transformers")

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.weight")


def config_of(file: GgufFile) -> transformers.LlamaConfig:
    """The configuration of the model in a file. Raises ConfigError if it cannot be trained here."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ConfigError(
            f"{file.path}: the architecture is {architecture!r}; only llama can be trained here"
        )
    if metadata.get("llama.rope.scaling.type", "none") != "none":
        raise ConfigError(
            f"{file.path}: the model scales its rotary positions, which is not supported; use another model"
        )
    names = {place.name for place in file.tensors}
    heads = _required(file, "attention.head_count")
    return transformers.LlamaConfig(
        vocab_size=next(place.shape[0] for place in file.tensors if place.name == EMBEDDING),
        hidden_size=_required(file, "embedding_length"),
        intermediate_size=_required(file, "feed_forward_length"),
        num_hidden_layers=_required(file, "block_count"),
        num_attention_heads=heads,
        num_key_value_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=_required(file, "embedding_length") // heads,
        max_position_embeddings=_required(file, "context_length"),
        rms_norm_eps=_required(file, "attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
        },
        tie_word_embeddings=OUTPUT not in names,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=metadata.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
    )


def _required(file: GgufFile, key: str) -> Any:
    value = file.metadata.get(f"llama.{key}")
    if value is None:
        raise ConfigError(f"{file.path}: the metadata has no llama.{key}; convert the model again")
    return value


def torch_name(file: GgufFile, name: str) -> str:
    """The name in transformers of a tensor of the file."""
    if (block := _BLOCK.fullmatch(name)) and block[2] in _NAMES:
        return f"model.layers.{block[1]}.{_NAMES[block[2]]}.weight"
    part = name.removesuffix(".weight")
    if part == name or part not in _NAMES:
        raise ConfigError(f"{file.path}: the tensor {name} is not part of a plain Llama; use another model")
    return f"{_NAMES[part]}.weight"


def from_gguf(name: str, weight: Weights, config: transformers.PreTrainedConfig) -> Weights:
    """Convert a tensor to the layout of transformers."""
    heads = _rotated_heads(name, config)
    if heads is None:
        return weight
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def to_gguf(name: str, weight: Weights, config: transformers.PreTrainedConfig) -> Weights:
    """Convert a tensor to the layout of GGUF."""
    heads = _rotated_heads(name, config)
    if heads is None:
        return weight
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _rotated_heads(name: str, config: transformers.PreTrainedConfig) -> int | None:
    """The number of heads if rows are rotated in pairs; None for other tensors.

    The rows of a pair are half a head apart in transformers and adjacent in GGUF.
    """
    heads: int | None = None
    if name.endswith("attn_q.weight"):
        heads = config.num_attention_heads
    elif name.endswith("attn_k.weight"):
        heads = config.num_key_value_heads
    return heads
