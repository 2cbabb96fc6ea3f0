"""A model while it generates: in eval mode, without gradients, with attention that reads a KV cache in place.

Everything is restored when the generation ends: the model may be a learner's. One generation at a time uses a
model; another waits.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from nemo_rl.lazy import lazy
from nemo_rl.undocumented.transformers_internals import attention_without_masks, grouped_attention

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
else:
    torch = lazy("torch")

_LOCKS: WeakKeyDictionary[object, threading.Lock] = WeakKeyDictionary()
"""One per model, because several backends may save and restore the state of the same model."""
_LAYER_TYPES = ("full_attention", "sliding_attention")


def check_model(model: PreTrainedModel, max_model_len: int) -> None:
    """Raise ValueError for a model that `SlotDecoder` cannot run correctly."""
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_model_len > positions:
        raise ValueError(f"max_model_len {max_model_len} is more than the model's {positions} positions")
    if attention := attention_without_masks(model):
        raise ValueError(
            f"attention {attention!r} does not take the masks used here; "
            'load the model with attn_implementation="sdpa" or "eager"'
        )
    layer_types = set(getattr(config, "layer_types", None) or ())
    if other := sorted(layer_types.difference(_LAYER_TYPES)):
        raise ValueError(
            f"layers of type {', '.join(other)} cannot be run here, only attention with a KV cache"
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and window < max_model_len and layer_types != {"full_attention"}:
        raise ValueError(
            f"max_model_len {max_model_len} is more than the {window} tokens that the model attends to"
        )
    base = getattr(model, "get_base_model", None)  # behind adapters
    whole = base() if base is not None else model
    if "position_ids" not in inspect.signature(type(whole).forward).parameters:
        raise ValueError(
            f"{type(whole).__name__} does not accept position_ids, which rows of different lengths need"
        )


@contextmanager
def generating(model: PreTrainedModel) -> Iterator[None]:
    """Inside this context the model belongs to the generation."""
    lock = _LOCKS.setdefault(model, threading.Lock())
    with lock, _in_eval_mode(model), grouped_attention(model), torch.no_grad():
        # Not inference_mode: a learner's pass may use tensors that a module caches here, such as positions.
        yield


@contextmanager
def _in_eval_mode(model: PreTrainedModel) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
