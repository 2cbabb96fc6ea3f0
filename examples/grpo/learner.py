"""GRPO: groups of rollouts in, better weights out.

Every completion is compared with the others of its prompt (`advantage_audit`), and its sampled tokens become
likelier or less likely by as much. The sampler's log-probabilities, which came with the rollouts, correct for
weights that are not quite those that sampled.

Invariants: only tokens that were sampled are trained on; a group whose members all did equally well changes
nothing and costs nothing; the result is that of computing every completion by itself.
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
    """Bound of a token's importance weight, the probability now over that when it was sampled."""
    is_float16_served: bool = False
    """Whether the sampler gets the weights as F16. The policy is then trained as what is served: it computes
    with weights that F16 can hold, while the optimizer keeps them in full. Otherwise most of an update, which
    is smaller than a step of F16, would be rounded away on its way to the sampler, and always in favour of
    the old weights."""
    pack_tokens: int = 1024
    """Places of a prefix tree: with fewer, prefixes are computed more often; with more, attention costs."""


@dataclass(frozen=True)
class Sample:
    """A completion as the loss sees it."""

    token_ids: list[int]
    is_trained_L: torch.Tensor
    sampler_logprobs_L: torch.Tensor
    advantage: float


@dataclass(frozen=True)
class UpdateReport:
    """What a step did, and how far the learner was from the sampler before it."""

    loss: float | None
    """None where no group had anything to teach; so are the others that are None."""
    grad_norm: float | None
    """Before it was clipped."""
    logprob_gap_mean: float | None
    """Of |learner − sampler| over the trained tokens, before the update."""
    logprob_gap_max: float | None
    ratio_max: float | None
    """The largest importance weight, before it was bounded."""
    trained_groups: int
    skipped_groups: int
    """All rewards the same, or nobody to compare with."""
    trained_tokens: int
    sequence_tokens: int
    """Of the completions trained on, prompts included."""
    computed_tokens: int
    """What that came to as prefix trees."""
    seconds: float


class Learner:
    """Owns the optimizer of a policy, and its weights at full precision."""

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
        """Make the optimizer's weights those of the model."""
        for master, weight in zip(self._masters, self._weights, strict=True):
            # Vectors are served in full.
            is_rounded = self.settings.is_float16_served and weight.dim() > 1
            weight.copy_(master.half() if is_rounded else master)

    def _backward(self, pack: Pack, samples: Sequence[Sample], trained_tokens: int) -> _Part:
        """Add the gradient of a tree's samples; the loss is a mean over the trained tokens of all trees."""
        wanted_T = torch.zeros(len(pack.token_ids_T), dtype=torch.bool)
        for member, places in zip(pack.members, pack.places, strict=True):
            wanted_T[places[samples[member].is_trained_L]] = True
        logprobs_T = token_logprobs(self.model, pack, wanted_T)
        losses, gaps = [], []
        for member, places in zip(pack.members, pack.places, strict=True):
            sample = samples[member]
            logprobs = logprobs_T[places[sample.is_trained_L]]
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
    """Learner − sampler, of each trained token."""


def samples_of(record: PromptGroupRecord) -> list[Sample]:
    """What a group teaches; nothing where no member did better or worse than its baseline."""
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
