"""Message logs: their tokens, masks and copies.

Invariant: the tokens of a log, in order, are exactly what the policy read and sampled, plus the last
observation. Only tokens that were sampled in the rollout and have log-probabilities are trained on.
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
    """A list or tensor, nested or not, as a 1-D int64 tensor. A tensor of that form is returned as it is."""
    if isinstance(values, torch.Tensor):
        is_flat_int64 = values.dtype is torch.int64 and values.dim() == 1
        return values if is_flat_int64 else values.reshape(-1).to(torch.int64)
    if values and isinstance(values[0], list):
        values = [value for row in values for value in row]
    return whole_numbers(values, torch.int64)


def whole_numbers(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An int64 or int32 tensor. Built from an array, which takes a quarter of the time of `torch.tensor`."""
    if not values:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer(array("q" if dtype is torch.int64 else "i", values), dtype=dtype)


def as_logprobs(values: Any) -> torch.Tensor:
    """A list or tensor as a 1-D float32 tensor. A tensor of that form is not copied."""
    if isinstance(values, torch.Tensor):
        return values.reshape(-1).to(torch.float32)
    return torch.tensor(values, dtype=torch.float32)


def copied(message_log: LLMMessageLogType) -> LLMMessageLogType:
    """A deep copy. Tensors are cloned, which is ten times faster than `copy.deepcopy`."""
    return [{key: _copied(value) for key, value in message.items()} for message in message_log]


def _copied(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def length_of(message_log: LLMMessageLogType) -> int:
    """Number of tokens in a log."""
    return sum([message["token_ids"].numel() for message in message_log])


def flat_token_ids(message_log: LLMMessageLogType) -> torch.Tensor:
    """All tokens in order, int64."""
    parts = [as_token_ids(message["token_ids"]) for message in message_log]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def is_sampled(message: dict[str, Any]) -> bool:
    """Whether the policy sampled the message in this rollout. Such messages are trained on."""
    return message["role"] == "assistant" and "generation_logprobs" in message


def token_loss_mask(message_log: LLMMessageLogType) -> torch.Tensor:
    """int64: 1 at tokens that were sampled in the rollout, else 0."""
    parts = [
        torch.full((len(message["token_ids"]),), int(is_sampled(message)), dtype=torch.int64)
        for message in message_log
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def flat_logprobs(message_log: LLMMessageLogType) -> torch.Tensor:
    """float32: the sampler's log-probability at tokens that were sampled in the rollout, else 0."""
    parts = [
        as_logprobs(message["generation_logprobs"])
        if is_sampled(message)
        else torch.zeros(len(message["token_ids"]), dtype=torch.float32)
        for message in message_log
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float32)
