"""Groups as a batch for verl's trainers, with the field names of verl 0.9."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_rl.experience.adapters.rows import MEAN_OF_GROUP, Advantages, rows_of
from nemo_rl.experience.train_batch import padded
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from nemo_rl.experience.adapters.rows import Row
    from nemo_rl.experience.interfaces import PromptGroupRecord
else:
    torch = lazy("torch")


def verl_batch(
    records: Sequence[PromptGroupRecord], pad_token_id: int, advantages: Advantages = MEAN_OF_GROUP
) -> dict[str, Any]:
    """The argument of `DataProto.from_single_dict`: tensors, and `uid` as a numpy array of strings."""
    rows = rows_of(records, advantages)
    prompts, responses = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
    padded_prompts = padded(prompts, pad_token_id, "left")
    padded_responses = padded(responses, pad_token_id, min_width=1)
    attention_mask = torch.cat(
        [
            padded([torch.ones_like(ids) for ids in prompts], 0, "left"),
            padded([torch.ones_like(ids) for ids in responses], 0, min_width=1),
        ],
        dim=1,
    )
    response_mask = padded([row.loss_mask for row in rows], 0, min_width=1)
    scores = _at_last_token(rows, response_mask.shape[1])
    advantage = torch.tensor([row.audit.advantage for row in rows], dtype=torch.float32)
    advantage_per_token = advantage.unsqueeze(1) * response_mask
    return {
        "prompts": padded_prompts,
        "responses": padded_responses,
        "input_ids": torch.cat([padded_prompts, padded_responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": response_mask,
        "rollout_log_probs": padded([row.completion_logprobs for row in rows], 0.0, min_width=1),
        "rm_scores": scores,
        "token_level_scores": scores.clone(),
        "token_level_rewards": scores.clone(),
        "advantages": advantage_per_token,
        "returns": advantage_per_token.clone(),
        "uid": _group_ids(rows),
    }


def _at_last_token(rows: Sequence[Row], width: int) -> torch.Tensor:
    """Each reward at the last token of its row, so that the sum of the row is the reward.

    In a row without tokens it is in the last column, as in verl.
    """
    scores = torch.zeros(len(rows), width, dtype=torch.float32)
    for number, row in enumerate(rows):
        scores[number, len(row.completion_ids) - 1] = row.completion.reward
    return scores


def _group_ids(rows: Sequence[Row]) -> Any:
    """One id per group. Two groups of one prompt have different ids, because the position is part of it."""
    import numpy

    return numpy.array([f"{row.record.prompt_idx}:{row.position}" for row in rows], dtype=object)
