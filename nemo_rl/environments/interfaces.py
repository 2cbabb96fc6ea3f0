"""The interface of an environment in a native rollout."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import torch

    from nemo_rl.data.interfaces import LLMMessageLogType
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

MetadataT = TypeVar("MetadataT")


class EnvironmentReturn(NamedTuple, Generic[MetadataT]):
    """The result of a step, batched over B conversations."""

    observations: list[dict[str, str]]
    """`role` and `content` per conversation."""
    metadata: list[MetadataT | None]
    """The state for the next step, per conversation; None keeps the current one."""
    next_stop_strings: list[list[str] | None] | list[None] | None
    """For the next turn; None keeps the current ones."""
    rewards: torch.Tensor | Mapping[str, torch.Tensor]
    """Float `[B]`. A mapping by name is for trainers with several rewards; the rollouts here refuse it."""
    terminateds: torch.Tensor
    """Bool `[B]`."""
    answers: list[str | None] | None
    """The answer of each conversation, if the environment extracts it."""


class EnvironmentInterface(abc.ABC, Generic[MetadataT]):
    """A rollout calls only `step`, which may be a coroutine function."""

    @abc.abstractmethod
    def step(
        self, message_log_batch: list[LLMMessageLogType], metadata: list[MetadataT]
    ) -> EnvironmentReturn[MetadataT]:
        """Score the last turn of each conversation and give the next observation."""

    @abc.abstractmethod
    def global_post_process_and_metrics(
        self, batch: BatchedDataDict[Any]
    ) -> tuple[BatchedDataDict[Any], dict[str, Any]]:
        """For trainers that process a whole batch; a rollout never calls it."""
