"""transformers: a KV cache of our own, masks of our own, and attention that reads the cache in place.

Undocumented: which methods a model calls on its `past_key_values`, that it takes a ready mask of shape
`[B, 1, Q, W]`, and `config._attn_implementation`. With them, sequences of different lengths share one pass
and a cache that is never copied. If the probe fails, each sequence has a `DynamicCache` and a pass of its own
(`nemo_rl.models.generation.kv_store`): the same tokens, slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_gym.undocumented.probe import Probe
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
else:
    torch = lazy("torch")

_COLUMN_STEP = 64
_GROUPED_SDPA = "nemo_rl_grouped_sdpa"


@dataclass(frozen=True)
class _Window:
    """The slots and columns that a pass writes and reads; T of its B × Q tokens are not padding."""

    slots: list[int]
    width: int
    """Columns that are read: the longest sequence, new tokens included."""
    batch_T: torch.Tensor
    query_T: torch.Tensor
    slot_T: torch.Tensor
    column_T: torch.Tensor

    @property
    def is_leading(self) -> bool:
        """The slots are the first ones, in order."""
        return self.slots == list(range(len(self.slots)))


class SlotCache:
    """Keys and values of sequences, one slot each: `[slots, heads, columns, dim]` per layer.

    A token's column is its position. The model takes the cache as `past_key_values`. A pass first opens a
    window; the layers then write their new keys there and read all columns of its slots up to its width. A
    pass over the slots 0 to n-1 reads them without a copy. Columns past a sequence's length are finite and
    masked. Columns are added as needed.
    """

    def __init__(self, slots: int, max_columns: int) -> None:
        self._slots = slots
        self._max_columns = max_columns
        self._columns = 0
        self._tensors: dict[tuple[str, int], torch.Tensor] = {}
        self._window: _Window | None = None
        self._is_leading = False

    def forward(
        self, model: PreTrainedModel, slots: list[int], starts: list[int], chunks: list[list[int]]
    ) -> torch.Tensor:
        """One pass over new tokens of these slots; logits `[B, V]` after each last one."""
        feed = _feed(slots, starts, chunks, model)
        self._open(feed.window)
        output = model(
            input_ids=feed.ids_B_Q,
            attention_mask=feed.mask_B_1_Q_W,
            position_ids=feed.positions_B_Q,
            past_key_values=self,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_B_V: torch.Tensor = output.logits[:, -1]
        return logits_B_V

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each layer: takes new keys and values `[B, heads, Q, dim]`, returns all up to them."""
        return self._put("keys", key_states, layer_idx), self._put("values", value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Called by some models, which do not use it: positions and masks are always given."""
        return self._window.width if self._window is not None else 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first columns of a slot to another."""
        for tensor in self._tensors.values():
            tensor[target, :, :length] = tensor[source, :, :length]

    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """Exchange the first columns of two slots, as many as the lengths say."""
        for tensor in self._tensors.values():
            kept = tensor[first, :, :first_length].clone()
            tensor[first, :, :second_length] = tensor[second, :, :second_length]
            tensor[second, :, :first_length] = kept

    def clear(self) -> None:
        """Free the memory."""
        self._tensors.clear()
        self._columns = 0
        self._window = None

    def _open(self, window: _Window) -> None:
        if window.width > self._columns:
            self._grow(window.width)
        self._window = window
        self._is_leading = window.is_leading

    def _put(self, kind: str, states: torch.Tensor, layer: int) -> torch.Tensor:
        window = self._window
        if window is None:
            raise RuntimeError("the cache has no window; a pass opens one first")
        stored = self._tensors.get((kind, layer))
        if stored is None:
            shape = (self._slots, states.shape[1], self._columns, states.shape[3])
            stored = self._tensors[kind, layer] = states.new_zeros(shape)
        stored[window.slot_T, :, window.column_T] = states[window.batch_T, :, window.query_T]
        if self._is_leading:
            return stored[: len(window.slots), :, : window.width]
        return stored[window.slots, :, : window.width]

    def _grow(self, columns: int) -> None:
        doubled = max(columns, 2 * self._columns)
        rounded = -(-doubled // _COLUMN_STEP) * _COLUMN_STEP
        self._columns = max(columns, min(rounded, self._max_columns))
        for key, old in self._tensors.items():
            slots, heads, width, dim = old.shape
            new = old.new_zeros((slots, heads, self._columns, dim))
            new[:, :, :width] = old
            self._tensors[key] = new


@dataclass(frozen=True)
class _Feed:
    """The inputs of a pass: B slots of Q new tokens that see W columns."""

    ids_B_Q: torch.Tensor
    positions_B_Q: torch.Tensor
    mask_B_1_Q_W: torch.Tensor
    """Added to attention scores: the form that every attention implementation takes."""
    window: _Window


def _feed(slots: list[int], starts: list[int], chunks: list[list[int]], model: PreTrainedModel) -> _Feed:
    device, dtype = model.device, model.dtype
    lengths = [len(chunk) for chunk in chunks]
    ids_B_Q = torch.tensor([chunk + chunk[-1:] * (max(lengths) - len(chunk)) for chunk in chunks])
    lengths_B_1, starts_B_1 = torch.tensor(lengths)[:, None], torch.tensor(starts)[:, None]
    queries_Q = torch.arange(max(lengths))
    # Padding stays at the last token's position: learned positions may end there.
    positions_B_Q = starts_B_1 + queries_Q.minimum(lengths_B_1 - 1)
    width = int((starts_B_1 + lengths_B_1).max())
    hidden_B_Q_W = torch.arange(width) > positions_B_Q[:, :, None]
    mask_B_Q_W = torch.zeros(hidden_B_Q_W.shape, dtype=dtype)
    mask_B_Q_W.masked_fill_(hidden_B_Q_W, torch.finfo(dtype).min)
    batch_T, query_T = (queries_Q < lengths_B_1).nonzero(as_tuple=True)
    window = _Window(
        slots=slots,
        width=width,
        batch_T=batch_T.to(device),
        query_T=query_T.to(device),
        slot_T=torch.tensor(slots)[batch_T].to(device),
        column_T=positions_B_Q[batch_T, query_T].to(device),
    )
    return _Feed(ids_B_Q.to(device), positions_B_Q.to(device), mask_B_Q_W[:, None].to(device), window)


def attention_without_masks(model: PreTrainedModel) -> str | None:
    """The name of the model's attention implementation if it cannot take a mask of ours."""
    if not probe.passed:
        return None
    name: str = model.config.get_text_config()._attn_implementation
    return None if name in ("sdpa", "eager", _GROUPED_SDPA) else name


@contextmanager
def grouped_attention(model: PreTrainedModel) -> Iterator[None]:
    """On a CPU, heads that share keys do not get a copy of the whole cache each."""
    config = model.config.get_text_config()
    if not probe.passed or config._attn_implementation != "sdpa" or model.device.type != "cpu":
        yield
        return
    with _grouped(config):
        yield


@contextmanager
def _grouped(config: Any) -> Iterator[None]:
    attention = config._attn_implementation
    config._attn_implementation = _register_grouped_sdpa()
    try:
        yield
    finally:
        config._attn_implementation = attention


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
    """As transformers' own, but without repeating keys and values.

    With a mask, transformers repeats both before the call; on a CPU this takes longer than the rest of
    attention.
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


def _check() -> bool:
    """A tiny model computes two sequences of different lengths in two passes as it computes each alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model_class: Any = LlamaForCausalLM
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
    )
    cache, sequences = SlotCache(2, 8), [[1, 2, 3, 4], [5, 6, 7]]
    with torch.random.fork_rng(), torch.no_grad():
        model = model_class(config).eval()
        alone_B_V = torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in sequences])
        with _grouped(config):
            cache.forward(model, [0, 1], [0, 0], [sequences[0][:3], sequences[1][:1]])
            together_B_V = cache.forward(model, [0, 1], [3, 1], [sequences[0][3:], sequences[1][1:]])
    is_back = model.config._attn_implementation == "sdpa"
    return is_back and torch.allclose(alone_B_V, together_B_V, atol=1e-4)


probe = Probe("transformers", _check)
