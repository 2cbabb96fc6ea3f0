"""Groups as a batch for TRL's GRPOTrainer, with the field names of trl 1.16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_rl.experience.adapters.rows import MEAN_OF_GROUP, Advantages, rows_of
from nemo_rl.experience.train_batch import padded
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from nemo_rl.experience.interfaces import PromptGroupRecord
else:
    torch = lazy("torch")


def trl_batch(
    records: Sequence[PromptGroupRecord], pad_token_id: int, advantages: Advantages = MEAN_OF_GROUP
) -> dict[str, torch.Tensor]:
    """The result of `_generate_and_score_completions`: prompts are padded left, completions right."""
    rows = rows_of(records, advantages)
    prompts, completions = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
    # At least one column: the trainer requests the logits of the last T tokens, and T = 0 would mean all.
    completion_mask = padded([torch.ones_like(ids) for ids in completions], 0, min_width=1)
    tool_mask = padded([row.loss_mask for row in rows], 0, min_width=1)
    return {
        "prompt_ids": padded(prompts, pad_token_id, "left"),
        "prompt_mask": padded([torch.ones_like(ids) for ids in prompts], 0, "left"),
        "completion_ids": padded(completions, pad_token_id, min_width=1),
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "sampling_per_token_logps": padded([row.completion_logprobs for row in rows], 0.0, min_width=1),
        "advantages": torch.tensor([row.audit.advantage for row in rows], dtype=torch.float32),
        "num_items_in_batch": tool_mask.sum(),
    }
