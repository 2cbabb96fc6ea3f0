"""Which members of a group are trained on, and which count in its baseline.

A member *trains* if it has weight in the loss. It *votes* if its reward counts in the baseline. The rule: a
member that failed, or that its environment flagged, neither trains nor votes. Otherwise the reward 0 of a
placeholder would lower the baseline, and its siblings would look better than they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_rl.experience.group_metrics import stddev

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_rl.experience.interfaces import Completion, PromptGroupRecord

_EPSILON = 1e-6
"""A smaller standard deviation of rewards counts as 0: dividing by it would only amplify rounding errors."""


def is_flagged(env_extras: dict[str, Any] | None) -> bool:
    """Whether the environment or the token capture excludes the sample from the loss."""
    if not env_extras:
        return False
    instance_config = env_extras.get("instance_config")
    in_config = isinstance(instance_config, dict) and instance_config.get("mask_sample") is True
    return in_config or env_extras.get("mask_sample") is True


def mask_reason(completion: Completion) -> str | None:
    """Why a completion has no weight in the loss; None if it has weight."""
    if completion.failure is not None:
        return f"failed: {completion.failure}"
    if is_flagged(completion.env_extras):
        return "flagged by its environment (mask_sample)"
    return None


@dataclass(frozen=True)
class MemberAudit:
    """One member of a group, and how its advantage was computed."""

    index: int
    """The generation index."""
    reward: float
    votes: bool
    trains: bool
    baseline: float | None
    """What the reward is compared with; None if there is no voting member to compare with."""
    advantage: float
    """0 if the member does not train."""
    reason: str


@dataclass(frozen=True)
class AdvantageAudit:
    """How the advantages of a group were computed."""

    prompt_idx: int
    rule: str
    baseline: float | None
    """Mean reward of the members that vote."""
    std: float | None
    """Sample standard deviation of their rewards; None if there are fewer than two."""
    members: list[MemberAudit]
    """The members in the group, in order."""
    absent: dict[int, str]
    """The members that failed and are not in the group: generation index → reason."""

    @property
    def advantages(self) -> list[float]:
        return [member.advantage for member in self.members]

    def lines(self) -> list[str]:
        """The audit as text."""
        baseline = "none" if self.baseline is None else f"{self.baseline:g}"
        head = f"prompt {self.prompt_idx}: baseline {baseline} ({self.rule})"
        members = [
            f"  {member.index}: reward {member.reward:g}, advantage {member.advantage:+g}, {member.reason}"
            for member in self.members
        ]
        return [head, *members, *(f"  {index}: absent, {reason}" for index, reason in self.absent.items())]


def advantage_audit(
    record: PromptGroupRecord, *, leave_one_out: bool = False, normalize: bool = False
) -> AdvantageAudit:
    """Compute the advantages of a group, with the baseline and the reason for every member.

    leave_one_out: the baseline of a member is the mean reward of the other voting members. normalize:
    advantages are divided by the standard deviation of the voting members' rewards, unless it is 0.
    """
    completions = record.completions
    reasons = [mask_reason(completion) for completion in completions]
    votes = [
        reason is None or (record.integrity.legacy_baseline and completion.failure is None)
        for completion, reason in zip(completions, reasons, strict=True)
    ]
    voting = [completion.reward for completion, vote in zip(completions, votes, strict=True) if vote]
    std = _std(voting)
    members = []
    for position, (completion, reason, vote) in enumerate(zip(completions, reasons, votes, strict=True)):
        baseline = _baseline(voting, completion.reward if leave_one_out and vote else None)
        trains = reason is None and baseline is not None
        advantage = completion.reward - baseline if trains and baseline is not None else 0.0
        if normalize and std is not None and std > _EPSILON:
            advantage /= std
        index = position if completion.generation_index is None else completion.generation_index
        explanation = _explanation(reason, vote, baseline)
        members.append(MemberAudit(index, completion.reward, vote, trains, baseline, advantage, explanation))
    present = {member.index for member in members}
    absent = {index: failure for index, failure in record.failures.items() if index not in present}
    rule = _rule(record.integrity.legacy_baseline, leave_one_out, normalize)
    return AdvantageAudit(record.prompt_idx, rule, _baseline(voting, None), std, members, absent)


def _baseline(voting: Sequence[float], own: float | None) -> float | None:
    """The mean of the voting rewards, without `own` if it is given."""
    count, total = len(voting), math.fsum(voting)
    if own is not None:
        count, total = count - 1, total - own
    return total / count if count else None


def _std(voting: Sequence[float]) -> float | None:
    return stddev(voting) if len(voting) > 1 else None


def _explanation(reason: str | None, vote: bool, baseline: float | None) -> str:
    if reason is None:
        return "votes and trains" if baseline is not None else "alone: nothing to compare it with"
    return f"{'votes' if vote else 'does not vote'}, does not train: {reason}"


def _rule(legacy_baseline: bool, leave_one_out: bool, normalize: bool) -> str:
    voters = "all but failed members" if legacy_baseline else "members that are neither failed nor flagged"
    parts = [f"mean reward of {voters}"]
    if leave_one_out:
        parts.append("without the member itself")
    if normalize:
        parts.append("advantages divided by the standard deviation")
    return ", ".join(parts)
