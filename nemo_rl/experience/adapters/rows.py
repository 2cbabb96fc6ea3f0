"""The input of all adapters: a member of a group, split into prompt and completion, with its advantage.

Invariants: prompt and completion together are the tokens of the member's message log. `advantage_audit`
computes the advantage and whether a member trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_rl.experience.integrity import AdvantageAudit, MemberAudit, advantage_audit
from nemo_rl.experience.message_log import flat_token_ids
from nemo_rl.experience.train_batch import TokenSequence, refuse_empty, token_sequences, warn_of_untrainable
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from nemo_rl.experience.interfaces import Completion, PromptGroupRecord
else:
    torch = lazy("torch")


@dataclass(frozen=True)
class Advantages:
    """Options of `advantage_audit`."""

    leave_one_out: bool = False
    """Compare a member with the mean of the others instead of the mean of all."""
    normalize: bool = False
    """Divide by the standard deviation of the voting members' rewards."""

    def audit(self, record: PromptGroupRecord) -> AdvantageAudit:
        return advantage_audit(record, leave_one_out=self.leave_one_out, normalize=self.normalize)


MEAN_OF_GROUP = Advantages()


@dataclass(frozen=True)
class Row:
    """A member of a group."""

    record: PromptGroupRecord
    position: int
    """Position of the group in the list of groups."""
    completion: Completion
    audit: MemberAudit
    sequence: TokenSequence
    prompt_length: int

    @property
    def prompt_ids(self) -> torch.Tensor:
        return self.sequence.token_ids[: self.prompt_length]

    @property
    def completion_ids(self) -> torch.Tensor:
        """All tokens after the prompt, observations included."""
        return self.sequence.token_ids[self.prompt_length :]

    @property
    def completion_logprobs(self) -> torch.Tensor:
        return self.sequence.logprobs[self.prompt_length :]

    @property
    def loss_mask(self) -> torch.Tensor:
        """Mask of the completion: 1 at sampled tokens; all 0 if the member does not train."""
        return self.sequence.mask[self.prompt_length :] * int(self.audit.trains)


def rows_of(records: Sequence[PromptGroupRecord], advantages: Advantages = MEAN_OF_GROUP) -> list[Row]:
    """The members, group by group, in the order of generation indices."""
    refuse_empty(records)
    warn_of_untrainable(records)
    return [
        row for position, record in enumerate(records) for row in _rows_of_one(record, position, advantages)
    ]


def _rows_of_one(record: PromptGroupRecord, position: int, advantages: Advantages) -> list[Row]:
    prompt_ids = flat_token_ids(record.prompt)
    members = advantages.audit(record).members
    rows = []
    for completion, audit, sequence in zip(record.completions, members, token_sequences(record), strict=True):
        if not torch.equal(sequence.token_ids[: len(prompt_ids)], prompt_ids):
            raise ValueError(
                f"prompt_idx={record.prompt_idx} generation_index={audit.index}: the tokens do not begin "
                f"with the {len(prompt_ids)} tokens of the group's prompt, so they cannot be split into "
                "prompt and completion; give every member of a group the same prompt"
            )
        rows.append(Row(record, position, completion, audit, sequence, len(prompt_ids)))
    return rows
