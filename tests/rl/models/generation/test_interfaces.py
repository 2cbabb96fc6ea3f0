"""Methods that a backend must define, and the defaults of the others."""

import typing
from typing import Any

import pytest
import torch

from nemo_rl.models.generation.interfaces import (
    GenerationConfig,
    GenerationDatumSpec,
    GenerationInterface,
    GenerationOutputSpec,
)

pytestmark = pytest.mark.torch


class MinimalBackend(GenerationInterface):
    """Defines the abstract methods only."""

    def init_collective(self, ip: str, port: int, world_size: int, **kwargs: Any) -> list[Any]:
        return []

    def generate(self, data: Any, greedy: bool) -> Any:
        return data

    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True


def test_a_backend_must_define_four_methods() -> None:
    required = {"init_collective", "generate", "prepare_for_generation", "finish_generation"}
    assert GenerationInterface.__abstractmethods__ == required


@pytest.mark.parametrize(
    ("hook", "arguments"),
    [
        ("prepare_refit_info", ({},)),
        ("update_weights_via_ipc_zmq", ()),
        ("update_weights_from_collective", ()),
        ("generate_async", ({},)),
    ],
)
def test_unsupported_methods_raise_an_error_that_names_the_backend(
    hook: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(NotImplementedError, match="MinimalBackend"):
        getattr(MinimalBackend(), hook)(*arguments)


def test_by_default_a_backend_has_no_cache_and_no_metrics() -> None:
    assert MinimalBackend().invalidate_kv_cache() is False
    assert MinimalBackend().get_logger_metrics() == {}


@pytest.mark.parametrize(
    ("spec", "required", "optional"),
    [
        (
            GenerationConfig,
            "backend max_new_tokens temperature top_p top_k stop_token_ids stop_strings",
            "model_name colocated port_range_low port_range_high use_async_rollouts _pad_token_id",
        ),
        (GenerationDatumSpec, "input_ids input_lengths", "stop_strings seeds"),
        (
            GenerationOutputSpec,
            "output_ids generation_lengths unpadded_sequence_lengths logprobs",
            "truncated gen_leader_worker_idx routed_experts",
        ),
    ],
)
def test_keys_are_the_published_ones_and_their_type_hints_resolve(
    spec: Any, required: str, optional: str
) -> None:
    assert spec.__required_keys__ == set(required.split())
    assert spec.__optional_keys__ == set(optional.split())
    assert typing.get_type_hints(spec).keys() == {*required.split(), *optional.split()}


def test_tokens_are_tensors() -> None:
    assert typing.get_type_hints(GenerationDatumSpec)["input_ids"] is torch.Tensor
    assert typing.get_type_hints(GenerationOutputSpec)["output_ids"] is torch.Tensor
