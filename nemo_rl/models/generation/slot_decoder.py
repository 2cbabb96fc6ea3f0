"""Sequences that a model continues together, each in a slot of one KV cache.

Rows are the sequences in flight and fill the first slots, in order; the slots behind them are idle and keep
the tokens of sequences that left. A slot's `tokens` are those whose keys are stored, added after the pass
that computed them: a pass that fails leaves every slot as it was. A row that joins starts from the longest
beginning of its prompt that a slot holds. So siblings of a group and the next turn of a conversation compute
only what has not been computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nemo_rl.models.generation.kv_store import new_store

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_PASS_TOKENS = 512
"""Prompt tokens of one pass: enough for full speed, few enough that masks and activations stay small."""


@dataclass
class Slot:
    """The tokens of a sequence whose keys and values are stored."""

    tokens: list[int] = field(default_factory=list)
    is_stale: bool = False
    """Computed with weights that have changed since: no sequence may start from it."""
    left_at: int = 0
    """How many sequences had left when this one did."""


class SlotDecoder:
    """`join` prompts, `step` all rows by one token, let them `leave`. Not thread-safe."""

    def __init__(self, model: PreTrainedModel, *, max_rows: int, max_model_len: int) -> None:
        self.model = model
        self.max_rows = max_rows
        self.rows = 0
        self.computed_prompt_tokens = 0
        """Tokens that no slot held."""
        self._slots: list[Slot] = []
        self._store = new_store(max_rows, max_model_len)
        self._departures = 0

    def held(self, prompt: Sequence[int]) -> int:
        """How many of its first tokens are stored. Join the prompt with most first: slots may be reused."""
        return max((self._shared(slot, prompt) for slot in range(len(self._slots))), default=0)

    def join(self, prompts: Sequence[Sequence[int]]) -> None:
        """Append a row per prompt, in order; computes all tokens but the last of each."""
        if self.rows + len(prompts) > self.max_rows:
            raise AssertionError(f"{len(prompts)} prompts join {self.rows} rows of at most {self.max_rows}")
        remaining = {self._claim(list(prompt[:-1])): list(prompt[:-1]) for prompt in prompts}
        while remaining := {row: tokens for row, tokens in remaining.items() if self._missing(row, tokens)}:
            leaders = self._leaders(remaining)
            self._compute({row: remaining.pop(row) for row in leaders})
            for row, tokens in remaining.items():
                self._copy_beginning(row, tokens)

    def step(self, tokens_N: Sequence[int]) -> torch.Tensor:
        """Give each row its next token; returns logits `[N, V]` for the token after it."""
        return self._forward(list(range(self.rows)), [[token] for token in tokens_N])

    def leave(self, row: int) -> None:
        """The last row takes its place; its tokens stay for later prompts that start with them."""
        self._departures += 1
        if self._slots[row].is_stale:
            self._slots[row] = Slot()
        self._slots[row].left_at = self._departures
        self.rows -= 1
        self._swap(row, self.rows)

    def forget(self) -> bool:
        """No sequence may start from what is stored, because the weights change; returns whether any was."""
        had = any(slot.tokens and not slot.is_stale for slot in self._slots)
        self._slots[self.rows :] = [Slot() for _ in self._slots[self.rows :]]
        for slot in self._slots[: self.rows]:
            slot.is_stale = True
        return had

    def release(self) -> None:
        """Free the memory of the cache; only without rows."""
        if self.rows:
            raise AssertionError(f"{self.rows} rows are in flight; their keys and values are needed")
        self._slots.clear()
        self._store.clear()

    def _claim(self, tokens: list[int]) -> int:
        """The next row, holding the longest beginning of `tokens` that is stored.

        An idle slot is reused if all its tokens begin `tokens`. Otherwise the slot that became idle first is
        overwritten, and the beginning is copied to it: a later prompt may continue the other slot.
        """
        row = self.rows
        if len(self._slots) < self.max_rows:
            self._slots.append(Slot())
        idle = range(row, len(self._slots))
        chosen = self._source(tokens)
        if chosen not in idle or self._shared(chosen, tokens) < len(self._slots[chosen].tokens):
            chosen = min(idle, key=lambda slot: self._slots[slot].left_at)
            shared = self._shared(chosen, tokens)
            self._slots[chosen] = Slot(self._slots[chosen].tokens[:shared])
            self._copy_beginning(chosen, tokens)
        self._swap(row, chosen)
        self.rows += 1
        return row

    def _source(self, tokens: Sequence[int]) -> int:
        """The slot that holds the longest beginning of `tokens`."""
        return max(range(len(self._slots)), key=lambda slot: self._shared(slot, tokens))

    def _shared(self, slot: int, tokens: Sequence[int]) -> int:
        return 0 if self._slots[slot].is_stale else common_length(self._slots[slot].tokens, tokens)

    def _missing(self, row: int, tokens: Sequence[int]) -> int:
        return len(tokens) - len(self._slots[row].tokens)

    def _copy_beginning(self, target: int, tokens: list[int]) -> None:
        """Copy the longest prefix of `tokens` that a slot holds, if it is longer than the target's."""
        source = self._source(tokens)
        shared = self._shared(source, tokens)
        if shared > len(self._slots[target].tokens):
            self._store.copy(source, target, shared)
            self._slots[target].tokens = tokens[:shared]

    def _swap(self, first: int, second: int) -> None:
        if first == second:
            return
        one, other = self._slots[first], self._slots[second]
        self._store.swap(first, second, len(one.tokens), len(other.tokens))
        self._slots[first], self._slots[second] = other, one

    def _leaders(self, remaining: Mapping[int, list[int]]) -> list[int]:
        """Rows to compute first: every other row shares over half of what it misses with one of them."""
        leaders: list[int] = []
        for row, tokens in remaining.items():
            needed = len(tokens) - self._missing(row, tokens) // 2
            if all(common_length(remaining[leader], tokens) < needed for leader in leaders):
                leaders.append(row)
        return leaders

    def _compute(self, remaining: Mapping[int, list[int]]) -> None:
        """Compute these rows; rows that miss about as much share a pass, so that little of it is padding."""
        while rows := [row for row, tokens in remaining.items() if self._missing(row, tokens)]:
            missing = {row: min(self._missing(row, remaining[row]), _PASS_TOKENS) for row in rows}
            rows.sort(key=lambda row: -missing[row])
            longest = missing[rows[0]]
            together = [row for row in rows[: _PASS_TOKENS // longest] if 2 * missing[row] >= longest]
            begin = {row: len(self._slots[row].tokens) for row in together}
            chunks = [remaining[row][begin[row] : begin[row] + missing[row]] for row in together]
            self._forward(together, chunks)
            self.computed_prompt_tokens += sum(map(len, chunks))

    def _forward(self, rows: list[int], chunks: list[list[int]]) -> torch.Tensor:
        """One pass over new tokens of these rows; logits `[B, V]` after the last of each."""
        starts = [len(self._slots[row].tokens) for row in rows]
        logits_B_V = self._store.forward(self.model, rows, starts, chunks)
        for row, chunk in zip(rows, chunks, strict=True):
            self._slots[row].tokens.extend(chunk)
        return logits_B_V


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common prefix of two sequences."""
    same, differs = 0, min(len(first), len(second)) + 1
    while differs - same > 1:
        middle = (same + differs) // 2
        # The tokens before `same` are known to be equal.
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            differs = middle
    return same
