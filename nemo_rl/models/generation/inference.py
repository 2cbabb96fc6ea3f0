"""A model while it generates: in eval mode, without gradients, with attention that reads a KV cache in place.

All of it is put back when the generation ends: the model may be a learner's. One generation at a time has it;
another on the same model waits.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
else:
    torch = lazy("torch")

_GROUPED_SDPA = "nemo_rl_grouped_sdpa"
_LOCKS: WeakKeyDictionary[object, threading.Lock] = WeakKeyDictionary()
"""Of each model that generates: what is put back belongs to the model, whichever backend runs it."""
_LAYER_TYPES = ("full_attention", "sliding_attention")


def check_model(model: PreTrainedModel, max_model_len: int) -> None:
    """ValueError for a model that `SlotDecoder` would not run, or not rightly."""
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_model_len > positions:
        raise ValueError(f"max_model_len {max_model_len} is more than the model's {positions} positions")
    if config._attn_implementation not in ("sdpa", "eager", _GROUPED_SDPA):
        raise ValueError(
            f"attention {config._attn_implementation!r} takes no mask of ours; "
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
            f"{type(whole).__name__} takes no position_ids, without which rows cannot differ in length"
        )


@contextmanager
def generating(model: PreTrainedModel) -> Iterator[None]:
    """The model is the generation's own within this."""
    with _LOCKS.setdefault(model, threading.Lock()), _changed(model), torch.no_grad():
        # Not inference_mode: what a module keeps of a pass (positions, say) must serve a learner's pass too.
        yield


@contextmanager
def _changed(model: PreTrainedModel) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    config = model.config.get_text_config()
    attention = config._attn_implementation
    try:
        for module in training:
            module.training = False
        if attention == "sdpa" and model.device.type == "cpu":
            config._attn_implementation = _register_grouped_sdpa()
        yield
    finally:
        config._attn_implementation = attention
        for module in training:
            module.training = True


def _register_grouped_sdpa() -> str:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(_GROUPED_SDPA, _grouped_sdpa)
    AttentionMaskInterface.register(_GROUPED_SDPA, sdpa_mask)
    return _GROUPED_SDPA


def _grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' own, but heads that share keys do not get a copy of the whole cache each.

    With a mask transformers repeats keys and values before the call; on a CPU this takes longer than all else
    that attention does.
    """
    if attention_mask is None or options.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=options.get("dropout", 0.0),
        scale=options.get("scaling"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.transpose(1, 2).contiguous(), None
