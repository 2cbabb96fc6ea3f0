"""Conversations as tokens: joined, masked, copied.

Invariant: the tokens of a log, in order, are exactly what the policy read and sampled, plus the last
observation. Trained on is what was sampled in the rollout and has its log-probabilities, nothing else.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch

    from nemo_rl.data.interfaces import LLMMessageLogType
else:
    torch = lazy("torch")


def as_token_ids(values: Any) -> torch.Tensor:
    """One-dimensional int64, of a list or a tensor of any type, nested or not; itself where it is that."""
    if isinstance(values, torch.Tensor):
        is_right = values.dtype is torch.int64 and values.dim() == 1
        return values if is_right else values.reshape(-1).to(torch.int64)
    if values and isinstance(values[0], list):
        values = [value for row in values for value in row]
    return whole_numbers(values, torch.int64)


def whole_numbers(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """int64 or int32; through an array, which takes a quarter of the time of `torch.tensor`."""
    if not values:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer(array("q" if dtype is torch.int64 else "i", values), dtype=dtype)


def as_logprobs(values: Any) -> torch.Tensor:
    """One-dimensional float32; itself where it is that."""
    if isinstance(values, torch.Tensor):
        return values.reshape(-1).to(torch.float32)
    return torch.tensor(values, dtype=torch.float32)


def copied(message_log: LLMMessageLogType) -> LLMMessageLogType:
    """A deep copy; tensors are cloned, which is ten times quicker than having them copied."""
    return [{key: _copied(value) for key, value in message.items()} for message in message_log]


def _copied(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def length_of(message_log: LLMMessageLogType) -> int:
    """Tokens of a log."""
    return sum([message["token_ids"].numel() for message in message_log])


def flat_token_ids(message_log: LLMMessageLogType) -> torch.Tensor:
    """All tokens in order, int64."""
    parts = [as_token_ids(message["token_ids"]) for message in message_log]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def is_sampled(message: dict[str, Any]) -> bool:
    """Whether the policy said it in this rollout: such a message is trained on."""
    return message["role"] == "assistant" and "generation_logprobs" in message


def token_loss_mask(message_log: LLMMessageLogType) -> torch.Tensor:
    """int64: 1 for every token that was sampled in the rollout, 0 for all others."""
    parts = [
        torch.full((len(message["token_ids"]),), int(is_sampled(message)), dtype=torch.int64)
        for message in message_log
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def flat_logprobs(message_log: LLMMessageLogType) -> torch.Tensor:
    """float32: the sampler's log-probability of every token that was sampled, 0 for all others."""
    parts = [
        as_logprobs(message["generation_logprobs"])
        if is_sampled(message)
        else torch.zeros(len(message["token_ids"]), dtype=torch.float32)
        for message in message_log
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float32)
