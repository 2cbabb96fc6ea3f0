"""Token sequences packed into prefix trees, so that shared prefixes are computed once.

The members of a group share their prompt, tasks share their worked examples, and a confident policy often
generates the same text. A tree has one node per distinct prefix. A node attends only to the nodes of its own
prefix, so the result at a node equals the result in each of the sequences that contain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_MINUS_INFINITY = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Pack:
    """A prefix tree as one input row for a model. T is the number of nodes."""

    token_ids_T: torch.Tensor
    position_ids_T: torch.Tensor
    parents_T: torch.Tensor
    """The parent of each node; -1 for the first token of a sequence."""
    attention_mask_TT: torch.Tensor
    """Added to the attention scores: 0 for the nodes that a node attends to."""
    members: list[int]
    """Indices of the sequences in the tree."""
    nodes: list[torch.Tensor]
    """For each member, the nodes of its tokens."""


def packed(sequences: Sequence[Sequence[int]], *, max_tokens: int) -> list[Pack]:
    """Pack the sequences, in sorted order, into trees of at most `max_tokens` nodes.

    A longer sequence gets its own tree. Attention costs the square of the nodes, but a prefix is computed
    again in every tree: neither one large tree nor many small ones are fastest.
    """
    packs, tree = [], _Tree()
    for index in sorted(range(len(sequences)), key=lambda index: list(sequences[index])):
        if tree.members and tree.size_with(sequences[index]) > max_tokens:
            packs.append(tree.pack())
            tree = _Tree()
        tree.add(index, sequences[index])
    return [*packs, tree.pack()] if tree.members else packs


class _Tree:
    """Takes sequences in sorted order, so the longest shared prefix is that of the last sequence."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._last: Sequence[int] = ()
        self._nodes: list[list[int]] = []

    def size_with(self, sequence: Sequence[int]) -> int:
        return len(self._tokens) + len(sequence) - _shared(self._last, sequence)

    def add(self, member: int, sequence: Sequence[int]) -> None:
        shared = _shared(self._last, sequence)
        nodes = self._nodes[-1][:shared] if self._nodes else []
        for token in sequence[shared:]:
            self._parents.append(nodes[-1] if nodes else -1)
            nodes.append(len(self._tokens))
            self._tokens.append(token)
        self.members.append(member)
        self._nodes.append(nodes)
        self._last = sequence

    def pack(self) -> Pack:
        size = len(self._tokens)
        nodes = [torch.tensor(one, dtype=torch.int64) for one in self._nodes]
        positions = torch.zeros(size, dtype=torch.int64)
        mask = torch.full((size, size), _MINUS_INFINITY)
        for one in nodes:
            positions[one] = torch.arange(len(one))
            sees = torch.full((len(one), len(one)), _MINUS_INFINITY).triu(1)
            mask[one.unsqueeze(1), one.unsqueeze(0)] = sees
        return Pack(
            torch.tensor(self._tokens, dtype=torch.int64),
            positions,
            torch.tensor(self._parents, dtype=torch.int64),
            mask,
            self.members,
            nodes,
        )


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def token_logprobs(model: Any, pack: Pack, wanted_T: torch.Tensor) -> torch.Tensor:
    """The log-probability of the token at each wanted node, given its prefix; 0 at other nodes.

    The model needs the attributes `model` and `lm_head`, as in transformers. `lm_head` is computed only for
    the wanted nodes, because it costs as much as several layers.
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
