"""What an environment is to a native rollout."""

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
    """What a step gave, batched over B conversations."""

    observations: list[dict[str, str]]
    """`role` and `content` of each."""
    metadata: list[MetadataT | None]
    """The state of each for its next step; None keeps the one it has."""
    next_stop_strings: list[list[str] | None] | list[None] | None
    """For the next turn; None keeps those there are."""
    rewards: torch.Tensor | Mapping[str, torch.Tensor]
    """Float `[B]`; a mapping by name is for trainers with several rewards, which rollouts here refuse."""
    terminateds: torch.Tensor
    """Bool `[B]`."""
    answers: list[str | None] | None
    """What each conversation answered, where the environment tells."""


class EnvironmentInterface(abc.ABC, Generic[MetadataT]):
    """A rollout calls `step` alone; it may be a coroutine function."""

    @abc.abstractmethod
    def step(
        self, message_log_batch: list[LLMMessageLogType], metadata: list[MetadataT]
    ) -> EnvironmentReturn[MetadataT]:
        """Judge the last turn of each conversation and say what the environment answers."""

    @abc.abstractmethod
    def global_post_process_and_metrics(
        self, batch: BatchedDataDict[Any]
    ) -> tuple[BatchedDataDict[Any], dict[str, Any]]:
        """For trainers that look at a whole batch; never called by a rollout."""
