"""Loads a policy in torch from a GGUF file.

transformers can load such a model too, but it takes ten times as long, needs another package, and sets
attributes for quantisation that prevent saving and training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import find_weights
from nemo_gym.local_engine.gguf_file import GgufFile, read_gguf_file
from nemo_rl.lazy import lazy
from nemo_rl.models.weights.dequantize import tensor_reader
from nemo_rl.models.weights.llama import config_of, from_gguf, torch_name

if TYPE_CHECKING:
    import tokenizers
    import torch
    import transformers
else:
    tokenizers, torch, transformers = lazy("tokenizers"), lazy("torch"), lazy("transformers")


@dataclass
class Policy:
    """A trainable model and its tokenizer."""

    model: transformers.PreTrainedModel
    """float32, in eval mode."""
    tokenizer: transformers.PreTrainedTokenizerFast
    source: Path
    """The GGUF file it was loaded from. An export copies the tokenizer and metadata of this file."""


def load_policy(path: Path | None = None) -> Policy:
    """Load the policy from a GGUF file of a Llama model; None: the included model."""
    source = find_weights(None if path is None else str(path))
    try:
        file = read_gguf_file(source)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return Policy(_model(file), _tokenizer(file), source)


def _model(file: GgufFile) -> transformers.PreTrainedModel:
    config, read = config_of(file), tensor_reader(file)
    weights = {
        torch_name(file, place.name): torch.from_numpy(from_gguf(place.name, read(place), config))
        for place in file.tensors
    }
    with _no_progress_bar():
        return transformers.LlamaForCausalLM.from_pretrained(
            None, config=config, state_dict=weights, dtype=torch.float32
        )


def _tokenizer(file: GgufFile) -> transformers.PreTrainedTokenizerFast:
    load: Any = transformers.PreTrainedTokenizerFast.from_pretrained
    tokenizer: transformers.PreTrainedTokenizerFast = load(file.path.parent, gguf_file=file.path.name)
    if file.metadata.get("tokenizer.ggml.pre") == "smollm":
        # transformers does not split digits here: it would tokenise two spaces and a 7 differently.
        steps = tokenizers.pre_tokenizers
        split = [steps.Digits(individual_digits=True), steps.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = steps.Sequence(split)
    return tokenizer


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    logging: Any = transformers.utils.logging
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()
