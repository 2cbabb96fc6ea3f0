"""What a generation backend is to a rollout."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch

    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
else:
    torch = lazy("torch")


class _NeededConfig(TypedDict):
    backend: str
    max_new_tokens: int
    temperature: float
    """0: the likeliest token."""
    top_p: float
    """1: all tokens."""
    top_k: int | None
    """None, 0 and -1: all tokens."""
    stop_token_ids: list[int] | None
    stop_strings: list[str] | None


class GenerationConfig(_NeededConfig, total=False):
    """How is generated; `policy.generation` of a trainer's configuration."""

    model_name: str
    colocated: dict[str, Any]
    port_range_low: int
    port_range_high: int
    use_async_rollouts: bool
    _pad_token_id: int


class _NeededDatum(TypedDict):
    input_ids: torch.Tensor
    """`[B, T]` int64, padded on the right."""
    input_lengths: torch.Tensor
    """`[B]` int32."""


class GenerationDatumSpec(_NeededDatum, total=False):
    """What is to be continued."""

    stop_strings: list[list[str] | None]
    """Of each, besides those of the configuration."""
    seeds: list[int]
    """Of each: the same seed and prompt give the same tokens, where the backend can do that."""


class _NeededOutput(TypedDict):
    output_ids: torch.Tensor
    """`[B, T']` int64: prompt and generation, padded on the right."""
    generation_lengths: torch.Tensor
    """`[B]` int64."""
    unpadded_sequence_lengths: torch.Tensor
    """`[B]` int64: prompt and generation."""
    logprobs: torch.Tensor
    """`[B, T']` float32; 0 over prompt and padding."""


class GenerationOutputSpec(_NeededOutput, total=False):
    """What was generated; matched stop strings and the end-of-sequence token stay in it."""

    truncated: torch.Tensor
    """`[B]` bool: the length limit ended it."""
    routed_experts: torch.Tensor
    """`[B, T', layers, topk]`: which experts each token went to, of a mixture of experts."""
    gen_leader_worker_idx: list[Any]
    """Who served it: an int, or a list of one."""


class AsyncGeneration(Protocol):
    """All that a native rollout asks of a backend."""

    def generate_async(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict[GenerationOutputSpec]], None]: ...


class GenerationInterface(abc.ABC):
    """A backend as trainers know it."""

    @abc.abstractmethod
    def init_collective(self, ip: str, port: int, world_size: int, **kwargs: Any) -> list[Any]:
        """Join the group of processes through which weights come."""

    @abc.abstractmethod
    def generate(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool
    ) -> BatchedDataDict[GenerationOutputSpec]:
        """Continue a whole batch."""

    @abc.abstractmethod
    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        """Take what generating needs."""

    @abc.abstractmethod
    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        """Give it back."""

    def generate_async(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict[GenerationOutputSpec]], None]:
        """Continue a batch of one; yields `(index, output)`."""
        raise NotImplementedError(f"{type(self).__name__} cannot generate for asynchronous rollouts")

    def prepare_refit_info(self, state_dict_info: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot be refitted")

    def update_weights_via_ipc_zmq(self) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__} takes no weights over IPC")

    def update_weights_from_collective(self) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__} takes no weights from a collective")

    def invalidate_kv_cache(self) -> bool:
        """Whether something was cached, and no longer is."""
        return False

    def get_logger_metrics(self) -> dict[str, Any]:
        return {}
