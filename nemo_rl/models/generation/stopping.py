"""When a generation ends: at a stop token or a stop string.

Both stay in the output. A stop string is found as soon as the generated text contains it, also in the
middle of a token. The prompt is not searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TOKENS_PER_CHARACTER = 4
"""A character may have four bytes, and each byte may be a token."""
_MARGIN_TOKENS = 4
"""Without the tokens before them, the first tokens may decode differently (spaces, parts of characters)."""


@dataclass(frozen=True)
class StopRule:
    """The stop tokens and stop strings of a request."""

    ids: frozenset[int]
    strings: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase

    def is_met(self, generated: Sequence[int]) -> bool:
        """Whether the last of these tokens ends the generation; called after each token."""
        return generated[-1] in self.ids or (bool(self.strings) and self._has_stop_string(generated))

    def _has_stop_string(self, generated: Sequence[int]) -> bool:
        longest = max(len(text) for text in self.strings)
        tail = list(generated[-(longest * _TOKENS_PER_CHARACTER + _MARGIN_TOKENS) :])
        # Special tokens are kept: "<|im_end|>" may be a stop string.
        decoded = self.tokenizer.decode(tail, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(text in decoded for text in self.strings)


def stop_strings(*lists: Iterable[str] | None) -> tuple[str, ...]:
    """The union of these lists, without duplicates."""
    texts = tuple(dict.fromkeys(text for strings in lists for text in _checked(strings)))
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"a stop string must be a non-empty string, not {text!r}")
    return texts


def _checked(strings: Iterable[str] | None) -> Iterable[str]:
    if isinstance(strings, str):
        raise ValueError(f"stop_strings must be a list, not the string {strings!r}; write [{strings!r}]")
    return strings or ()


def end_of_sequence_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All end-of-sequence tokens: chat models often have several."""
    generation_config = getattr(model, "generation_config", None)
    found: set[int] = set()
    for ids in (getattr(generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        found.update(() if ids is None else [ids] if isinstance(ids, int) else ids)
    return frozenset(found)
