"""The interface of a generation backend, and the data that goes in and out."""

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
    """0 picks the likeliest token."""
    top_p: float
    """1 keeps all tokens."""
    top_k: int | None
    """None, 0 and -1 keep all tokens."""
    stop_token_ids: list[int] | None
    stop_strings: list[str] | None


class GenerationConfig(_NeededConfig, total=False):
    """Settings of generation: `policy.generation` in a trainer's configuration."""

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
    """A batch of prompts."""

    stop_strings: list[list[str] | None]
    """Per prompt, in addition to those of the configuration."""
    seeds: list[int]
    """Per prompt. The same seed and prompt give the same tokens, if the backend supports it."""


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
    """A batch of generations. Matched stop strings and end-of-sequence tokens stay in the output."""

    truncated: torch.Tensor
    """`[B]` bool: ended by the token limit."""
    routed_experts: torch.Tensor
    """`[B, T', layers, topk]`: the experts that each token was routed to, in a mixture of experts."""
    gen_leader_worker_idx: list[Any]
    """The worker that generated it: an int, or a list of one int."""


class AsyncGeneration(Protocol):
    """The part of a backend that a native rollout uses."""

    def generate_async(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict[GenerationOutputSpec]], None]: ...


class GenerationInterface(abc.ABC):
    """A backend as trainers use it."""

    @abc.abstractmethod
    def init_collective(self, ip: str, port: int, world_size: int, **kwargs: Any) -> list[Any]:
        """Join the process group that sends the weights."""

    @abc.abstractmethod
    def generate(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool
    ) -> BatchedDataDict[GenerationOutputSpec]:
        """Generate for a whole batch."""

    @abc.abstractmethod
    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        """Allocate what generation needs."""

    @abc.abstractmethod
    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        """Free what `prepare_for_generation` allocated."""

    def generate_async(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict[GenerationOutputSpec]], None]:
        """Generate for a batch of one prompt; yields `(index, output)`."""
        raise NotImplementedError(f"{type(self).__name__} does not support asynchronous rollouts")

    def prepare_refit_info(self, state_dict_info: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not support refitting")

    def update_weights_via_ipc_zmq(self) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not receive weights over IPC")

    def update_weights_from_collective(self) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not receive weights from a collective")

    def invalidate_kv_cache(self) -> bool:
        """Drop cached keys and values; returns whether there were any."""
        return False

    def get_logger_metrics(self) -> dict[str, Any]:
        return {}
