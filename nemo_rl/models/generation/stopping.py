"""When a generation is over: at a token, or at a text in what was generated.

Both stay in the output. A text is found as soon as the generated tokens hold it, wherever their borders are;
the prompt is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TOKENS_PER_CHARACTER = 4
"""A character of four bytes may take a token for each."""
_MARGIN_TOKENS = 4
"""The first tokens of a tail may decode differently than in their place (blanks, halves of characters)."""


@dataclass(frozen=True)
class StopRule:
    """What ends a request's generation."""

    ids: frozenset[int]
    strings: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase

    def is_met(self, generated: Sequence[int]) -> bool:
        """Whether the last of these tokens ends it; asked after each."""
        return generated[-1] in self.ids or (bool(self.strings) and self._has_text(generated))

    def _has_text(self, generated: Sequence[int]) -> bool:
        longest = max(len(text) for text in self.strings)
        tail = list(generated[-(longest * _TOKENS_PER_CHARACTER + _MARGIN_TOKENS) :])
        # Special tokens are kept: "<|im_end|>" may be asked for as a text.
        decoded = self.tokenizer.decode(tail, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(text in decoded for text in self.strings)


def stop_strings(*lists: Iterable[str] | None) -> tuple[str, ...]:
    """The union, each once."""
    texts = tuple(dict.fromkeys(text for given in lists for text in _listed(given)))
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop strings must be texts with at least one character, not {text!r}")
    return texts


def _listed(given: Iterable[str] | None) -> Iterable[str]:
    if isinstance(given, str):
        raise ValueError(f"stop_strings must be a list, not the text {given!r}; write [{given!r}]")
    return given or ()


def end_of_sequence_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All that end a text: chat models often have several."""
    generation_config = getattr(model, "generation_config", None)
    found: set[int] = set()
    for ids in (getattr(generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        found.update(() if ids is None else [ids] if isinstance(ids, int) else ids)
    return frozenset(found)
