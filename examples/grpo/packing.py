"""Many token sequences as one: what several of them begin with is computed once.

The members of a group share their prompt, tasks share their worked examples, and a policy that is sure of
itself says the same thing often. Sequences are laid out as a prefix tree: every different prefix has one
place, at its own position, and attends to the places of its own prefix and to nothing else. What is computed
at a place is therefore what would be computed in any of the sequences that go through it, alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_MINUS_INFINITY = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Pack:
    """A prefix tree as one row for a model; T places."""

    token_ids_T: torch.Tensor
    position_ids_T: torch.Tensor
    parents_T: torch.Tensor
    """The place before each in its sequence; -1 for the first of one."""
    attention_mask_TT: torch.Tensor
    """To be added to attention scores: 0 for what a place sees."""
    members: list[int]
    """Which of the sequences are in it."""
    places: list[torch.Tensor]
    """Of each member: the place of each of its tokens."""


def packed(sequences: Sequence[Sequence[int]], *, max_tokens: int) -> list[Pack]:
    """The sequences in as few trees as hold them, each of at most so many places.

    A longer sequence has a tree of its own. Attention costs the square of the places, a prefix is computed
    again in every tree: neither one large tree nor many small ones are cheapest.
    """
    packs, tree = [], _Tree()
    for index in sorted(range(len(sequences)), key=lambda index: list(sequences[index])):
        if tree.members and tree.size_with(sequences[index]) > max_tokens:
            packs.append(tree.pack())
            tree = _Tree()
        tree.add(index, sequences[index])
    return [*packs, tree.pack()] if tree.members else packs


class _Tree:
    """Grows by sequences in sorted order: none has more in common with an earlier one than with the last."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._last: Sequence[int] = ()
        self._places: list[list[int]] = []

    def size_with(self, sequence: Sequence[int]) -> int:
        return len(self._tokens) + len(sequence) - _shared(self._last, sequence)

    def add(self, member: int, sequence: Sequence[int]) -> None:
        shared = _shared(self._last, sequence)
        places = self._places[-1][:shared] if self._places else []
        for token in sequence[shared:]:
            self._parents.append(places[-1] if places else -1)
            places.append(len(self._tokens))
            self._tokens.append(token)
        self.members.append(member)
        self._places.append(places)
        self._last = sequence

    def pack(self) -> Pack:
        size = len(self._tokens)
        places = [torch.tensor(one, dtype=torch.int64) for one in self._places]
        positions = torch.zeros(size, dtype=torch.int64)
        mask = torch.full((size, size), _MINUS_INFINITY)
        for one in places:
            positions[one] = torch.arange(len(one))
            sees = torch.full((len(one), len(one)), _MINUS_INFINITY).triu(1)
            mask[one.unsqueeze(1), one.unsqueeze(0)] = sees
        return Pack(
            torch.tensor(self._tokens, dtype=torch.int64),
            positions,
            torch.tensor(self._parents, dtype=torch.int64),
            mask,
            self.members,
            places,
        )


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def token_logprobs(model: Any, pack: Pack, wanted_T: torch.Tensor) -> torch.Tensor:
    """The log-probability of the token at each wanted place, given its prefix; 0 at all others.

    The model has a `model` below its `lm_head`, as those of transformers do.

    Only wanted ones are scored against the vocabulary, which costs as much as several layers.
    """
    hidden = model.model(
        input_ids=pack.token_ids_T.unsqueeze(0),
        attention_mask=pack.attention_mask_TT[None, None],
        position_ids=pack.position_ids_T.unsqueeze(0),
        use_cache=False,
    ).last_hidden_state[0]
    wanted = wanted_T.nonzero().squeeze(1)
    sources, source_of = torch.unique(pack.parents_T[wanted], return_inverse=True)
    logits = model.lm_head(hidden[sources])
    chosen = logits[source_of, pack.token_ids_T[wanted]] - logits.logsumexp(-1)[source_of]
    return torch.zeros(len(wanted_T)).index_put((wanted,), chosen)
