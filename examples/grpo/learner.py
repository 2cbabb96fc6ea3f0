"""GRPO: updates the weights of a policy from groups of rollouts.

Every completion is compared with the others of its prompt (`advantage_audit`). Its sampled tokens become more
likely if it was better, less likely if it was worse. The weights may have changed slightly since the tokens
were sampled; importance weights, computed from the sampler's log-probabilities, correct for that.

Invariants: only sampled tokens are trained on; a group whose members have equal rewards is skipped; the
gradient equals the one computed from each completion separately.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from examples.grpo.packing import Pack, packed, token_logprobs
from nemo_rl.experience.integrity import advantage_audit
from nemo_rl.experience.interfaces import PromptGroupRecord
from nemo_rl.experience.message_log import flat_logprobs, flat_token_ids, token_loss_mask


@dataclass(frozen=True)
class LearnerSettings:
    learning_rate: float = 1e-5
    max_grad_norm: float = 1.0
    max_ratio: float = 2.0
    """Upper bound of a token's importance weight: its probability now over that when it was sampled."""
    is_float16_served: bool = False
    """Whether the sampler gets the weights as F16. If so, the model computes with weights rounded to F16, and
    the optimizer keeps them in full precision. Otherwise most of an update would be lost when the weights are
    exported, because it is smaller than the spacing of F16 numbers."""
    pack_tokens: int = 1024
    """Largest size of a prefix tree. In smaller trees more prefixes are computed again; in larger trees
    attention costs more."""


@dataclass(frozen=True)
class Sample:
    """The parts of a completion that the loss needs."""

    token_ids: list[int]
    is_trained_L: torch.Tensor
    sampler_logprobs_L: torch.Tensor
    advantage: float


@dataclass(frozen=True)
class UpdateReport:
    """The numbers of an update. Fields are None if all groups were skipped."""

    loss: float | None
    grad_norm: float | None
    """Before clipping."""
    logprob_gap_mean: float | None
    """Mean of |learner − sampler| over the trained tokens, before the update."""
    logprob_gap_max: float | None
    ratio_max: float | None
    """The largest importance weight, before the bound."""
    trained_groups: int
    skipped_groups: int
    """Groups with equal rewards, or without members to compare."""
    trained_tokens: int
    sequence_tokens: int
    """Tokens of the completions trained on, prompts included."""
    computed_tokens: int
    """Tokens that were computed for them: shared prefixes count once per tree."""
    seconds: float


class Learner:
    """Owns the optimizer of a policy, and its weights in full precision."""

    def __init__(self, model: torch.nn.Module, settings: LearnerSettings | None = None) -> None:
        self.model = model
        self.settings = settings or LearnerSettings()
        self._weights = list(model.parameters())
        self._masters = [weight.detach().clone() for weight in self._weights]
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=self.settings.learning_rate, weight_decay=0.0, fused=True
        )
        self._publish()

    def update(self, records: Sequence[PromptGroupRecord]) -> UpdateReport:
        """One step on these groups."""
        began = time.perf_counter()
        groups = [group for group in map(samples_of, records) if group]
        samples = [sample for group in groups for sample in group]
        trained_tokens = int(sum(sample.is_trained_L.sum() for sample in samples))
        self.model.zero_grad(set_to_none=True)
        packs = packed([sample.token_ids for sample in samples], max_tokens=self.settings.pack_tokens)
        parts = [self._backward(pack, samples, trained_tokens) for pack in packs]
        grad_norm = self._step() if parts else None
        gaps = torch.cat([part.gaps for part in parts]) if parts else None
        return UpdateReport(
            loss=sum(part.loss for part in parts) if parts else None,
            grad_norm=grad_norm,
            logprob_gap_mean=None if gaps is None else float(gaps.abs().mean()),
            logprob_gap_max=None if gaps is None else float(gaps.abs().max()),
            ratio_max=None if gaps is None else float(gaps.exp().max()),
            trained_groups=len(groups),
            skipped_groups=len(records) - len(groups),
            trained_tokens=trained_tokens,
            sequence_tokens=sum(len(sample.token_ids) for sample in samples),
            computed_tokens=sum(len(pack.token_ids_T) for pack in packs),
            seconds=time.perf_counter() - began,
        )

    def _step(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self._weights, self.settings.max_grad_norm)
        for master, weight in zip(self._masters, self._weights, strict=True):
            master.grad, weight.grad = weight.grad, None
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._publish()
        return float(norm)

    @torch.no_grad()
    def _publish(self) -> None:
        """Copy the optimizer's weights to the model."""
        for master, weight in zip(self._masters, self._weights, strict=True):
            # Vectors are served in full precision.
            is_rounded = self.settings.is_float16_served and weight.dim() > 1
            weight.copy_(master.half() if is_rounded else master)

    def _backward(self, pack: Pack, samples: Sequence[Sample], trained_tokens: int) -> _Part:
        """Add the gradient of a tree's samples. The loss is the mean over the trained tokens of all trees."""
        wanted_T = torch.zeros(len(pack.token_ids_T), dtype=torch.bool)
        for member, nodes in zip(pack.members, pack.nodes, strict=True):
            wanted_T[nodes[samples[member].is_trained_L]] = True
        logprobs_T = token_logprobs(self.model, pack, wanted_T)
        losses, gaps = [], []
        for member, nodes in zip(pack.members, pack.nodes, strict=True):
            sample = samples[member]
            logprobs = logprobs_T[nodes[sample.is_trained_L]]
            gap = logprobs.detach() - sample.sampler_logprobs_L[sample.is_trained_L]
            weights = gap.exp().clamp(max=self.settings.max_ratio)
            losses.append(-(weights * logprobs).sum() * sample.advantage)
            gaps.append(gap)
        loss = torch.stack(losses).sum() / trained_tokens
        torch.autograd.backward(loss)
        return _Part(float(loss.detach()), torch.cat(gaps))


@dataclass(frozen=True)
class _Part:
    loss: float
    gaps: torch.Tensor
    """Learner − sampler for each trained token."""


def samples_of(record: PromptGroupRecord) -> list[Sample]:
    """The members of a group that train; none if every reward equals its baseline."""
    audit = advantage_audit(record, normalize=True)
    samples = [
        Sample(
            flat_token_ids(completion.message_log).tolist(),
            token_loss_mask(completion.message_log).bool(),
            flat_logprobs(completion.message_log),
            member.advantage,
        )
        for completion, member in zip(record.completions, audit.members, strict=True)
        if member.trains
    ]
    return samples if any(sample.advantage for sample in samples) else []
