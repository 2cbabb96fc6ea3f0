"""Groups as one padded batch, with the field names of the published interface.

Invariant: `token_mask` is 1 at the tokens that were sampled in the rollout and 0 elsewhere.
`generation_logprobs` has the sampler's log-probability at these tokens and 0 elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.integrity import mask_reason
from nemo_rl.experience.message_log import flat_logprobs, flat_token_ids, is_sampled, token_loss_mask
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from nemo_rl.experience.interfaces import PromptGroupRecord
else:
    torch = lazy("torch")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenSequence:
    """The tokens of a completion, prompt included. The three tensors have the same length."""

    token_ids: torch.Tensor
    mask: torch.Tensor
    """int64: 1 at sampled tokens, else 0."""
    logprobs: torch.Tensor
    """float32: the sampler's log-probability at sampled tokens, else 0."""


def record_to_train_batch(
    record: PromptGroupRecord, pad_value_dict: Mapping[str, int] | None = None
) -> BatchedDataDict[Any]:
    """One row per completion, in order, padded on the right.

    The padding token is `pad_value_dict["token_ids"]`, else `pad_value_dict["input_ids"]`, else 0.
    """
    return records_to_train_batch([record], pad_value_dict)


def records_to_train_batch(
    records: Sequence[PromptGroupRecord], pad_value_dict: Mapping[str, int] | None = None
) -> BatchedDataDict[Any]:
    """One row per completion, group by group, padded to the longest sequence of all groups."""
    refuse_empty(records)
    warn_of_untrainable(records)
    pad = _pad_token_id(pad_value_dict or {})
    pads = {"input_ids": pad, "prompt_ids_for_adv": pad}
    return BatchedDataDict.from_batches([_batch(record, pad) for record in records], pads)


def _batch(record: PromptGroupRecord, pad: int) -> BatchedDataDict[Any]:
    completions = record.completions
    sequences = token_sequences(record)
    lengths = [len(sequence.token_ids) for sequence in sequences]
    weights = [0.0 if mask_reason(completion) else 1.0 for completion in completions]
    return BatchedDataDict(
        input_ids=padded([sequence.token_ids for sequence in sequences], pad),
        input_lengths=torch.tensor(lengths, dtype=torch.int32),
        generation_logprobs=padded([sequence.logprobs for sequence in sequences], 0.0),
        token_mask=padded([sequence.mask for sequence in sequences], 0),
        sample_mask=torch.tensor(weights, dtype=torch.float32),
        prompt_ids_for_adv=flat_token_ids(record.prompt).repeat(len(completions), 1),
        total_reward=torch.tensor([completion.reward for completion in completions], dtype=torch.float32),
    )


def token_sequences(record: PromptGroupRecord) -> list[TokenSequence]:
    """The sequences of the members, in order; ValueError if a sampled token has no log-probability."""
    sequences = []
    for position, completion in enumerate(record.completions):
        log = completion.message_log
        sequence = TokenSequence(flat_token_ids(log), token_loss_mask(log), flat_logprobs(log))
        if len(sequence.logprobs) != len(sequence.token_ids):
            raise ValueError(
                f"prompt_idx={record.prompt_idx} completion {position}: a sampled message does not have one "
                "generation_logprobs entry per token; the backend must return one for each token it sampled"
            )
        sequences.append(sequence)
    return sequences


def padded(
    rows: Sequence[torch.Tensor],
    value: float,
    side: Literal["left", "right"] = "right",
    *,
    min_width: int = 0,
) -> torch.Tensor:
    """N rows as one tensor `[N, T]`; T is the length of the longest row, at least `min_width`."""
    joined = torch.nn.utils.rnn.pad_sequence(
        list(rows), batch_first=True, padding_value=value, padding_side=side
    )
    missing = max(0, min_width - joined.shape[1])
    added = (missing, 0) if side == "left" else (0, missing)
    return torch.nn.functional.pad(joined, added, value=value)


def refuse_empty(records: Sequence[PromptGroupRecord]) -> None:
    """Raise unless `records` is a sequence of groups that have completions."""
    if not isinstance(records, Sequence):
        raise TypeError(f"expected a list of groups, not a {type(records).__name__}; pass [record]")
    if not records or not all(record.completions for record in records):
        raise ValueError("cannot build a batch: it needs at least one group, and every group a completion")


def warn_of_untrainable(records: Sequence[PromptGroupRecord]) -> None:
    """Log one warning for all groups without log-probabilities."""
    untrainable = [record.prompt_idx for record in records if not _has_sampled(record)]
    if untrainable:
        logger.warning(
            "%d of %d groups cannot be trained on: the backend returned no log-probabilities, so no message "
            "has generation_logprobs (prompt_idx %s)",
            len(untrainable),
            len(records),
            ", ".join(map(str, untrainable[:10])) + (", …" if len(untrainable) > 10 else ""),
        )


def _has_sampled(record: PromptGroupRecord) -> bool:
    logs = (completion.message_log for completion in record.completions)
    return any(is_sampled(message) for log in logs for message in log)


def _pad_token_id(pad_value_dict: Mapping[str, int]) -> int:
    return int(pad_value_dict.get("token_ids", pad_value_dict.get("input_ids", 0)))
