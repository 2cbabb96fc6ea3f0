"""Storage for the keys and values of a decoder's sequences. A probe chooses the implementation."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nemo_rl.lazy import lazy
from nemo_rl.undocumented import transformers_internals

if TYPE_CHECKING:
    import torch
    import transformers
    from transformers import PreTrainedModel
else:
    torch, transformers = lazy("torch"), lazy("transformers")


class KeyValueStore(Protocol):
    """Keys and values of sequences in numbered slots. The caller knows how many tokens each slot holds."""

    def forward(
        self, model: PreTrainedModel, slots: list[int], starts: list[int], chunks: list[list[int]]
    ) -> torch.Tensor:
        """Append `chunks` to slots that hold `starts` tokens; logits `[B, V]` after the last of each."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a slot to another."""

    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """Exchange the first tokens of two slots, as many as the lengths say."""

    def clear(self) -> None:
        """Free the memory."""


def new_store(slots: int, max_model_len: int) -> KeyValueStore:
    """One cache for all slots if the installed transformers allows it, else one per slot."""
    if transformers_internals.probe.passed:
        return transformers_internals.SlotCache(slots, max_model_len)
    return DynamicCaches()


@dataclass
class _Sequence:
    tokens: list[int] = field(default_factory=list)
    cache: transformers.DynamicCache | None = None
    """None if nothing is computed, or if a pass failed: its layers may then differ in length."""

    def crop(self, length: int) -> None:
        """Keep the first tokens only."""
        del self.tokens[length:]
        if not length:
            self.cache = None
        elif self.cache is not None and (surplus := self.cache.get_seq_length() - length):
            self.cache.crop(-surplus)


class DynamicCaches:
    """A `DynamicCache` per slot and a pass per sequence: documented API only."""

    def __init__(self) -> None:
        self._sequences: dict[int, _Sequence] = {}

    def forward(
        self, model: PreTrainedModel, slots: list[int], starts: list[int], chunks: list[list[int]]
    ) -> torch.Tensor:
        passes = zip(slots, starts, chunks, strict=True)
        return torch.stack([self._continue(model, slot, start, chunk) for slot, start, chunk in passes])

    def copy(self, source: int, target: int, length: int) -> None:
        self._sequences[target] = copy.deepcopy(self._sequences.get(source, _Sequence()))
        self._sequences[target].crop(length)

    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        kept = [self._sequences.pop(slot, _Sequence()) for slot in (first, second)]
        self._sequences[second], self._sequences[first] = kept

    def clear(self) -> None:
        self._sequences.clear()

    def _continue(self, model: PreTrainedModel, slot: int, start: int, chunk: list[int]) -> torch.Tensor:
        sequence = self._sequences.setdefault(slot, _Sequence())
        sequence.crop(start)
        cache, sequence.cache = sequence.cache, None
        new = chunk
        if cache is None:
            cache, new = transformers.DynamicCache(), sequence.tokens + chunk
        output = model(
            input_ids=torch.tensor([new], device=model.device),
            attention_mask=torch.ones((1, start + len(chunk)), dtype=torch.int64, device=model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        sequence.tokens.extend(chunk)
        sequence.cache = cache
        logits_V: torch.Tensor = output.logits[0, -1]
        return logits_V
