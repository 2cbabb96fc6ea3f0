"""The published train batch with its advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_rl.experience.adapters.rows import MEAN_OF_GROUP, Advantages
from nemo_rl.experience.train_batch import records_to_train_batch
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.experience.interfaces import PromptGroupRecord
else:
    torch = lazy("torch")


def nemo_rl_batch(
    records: Sequence[PromptGroupRecord],
    pad_value_dict: Mapping[str, int] | None = None,
    advantages: Advantages = MEAN_OF_GROUP,
) -> BatchedDataDict[Any]:
    """`records_to_train_batch` with `advantages` `[N, T]`, which are 0 at tokens that were not sampled."""
    batch = records_to_train_batch(records, pad_value_dict)
    members = [member for record in records for member in advantages.audit(record).members]
    # With leave_one_out, a member that has no others to compare with does not train either.
    batch["sample_mask"] = torch.tensor([member.trains for member in members], dtype=torch.float32)
    advantage = torch.tensor([member.advantage for member in members], dtype=torch.float32)
    batch["advantages"] = advantage.unsqueeze(1) * batch["token_mask"]
    return batch
