"""Requests to a generation backend, and a check of its log-probs against the model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.interfaces import GenerationConfig, GenerationInterface


def generation_config(**changes: Any) -> GenerationConfig:
    """A configuration without filters, at temperature 1, with 24 new tokens."""
    return {
        "backend": "transformers",
        "max_new_tokens": 24,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "stop_token_ids": None,
        "stop_strings": None,
        **changes,  # type: ignore[typeddict-item]
    }


def batch_of(
    prompts: Sequence[Sequence[int]], *, width: int | None = None, **others: Any
) -> BatchedDataDict[Any]:
    """Prompts padded on the right, to `width` if given, with a token that is not the pad token."""
    width = width or max(map(len, prompts))
    rows = [[*prompt, *[5] * (width - len(prompt))] for prompt in prompts]
    lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
    return BatchedDataDict(input_ids=torch.tensor(rows), input_lengths=lengths, **others)


def random_prompts(count: int, *, longest: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, 64, (length,), generator=generator).tolist() for length in lengths]


def generated_tokens(output: Mapping[str, Any]) -> list[list[int]]:
    """The generated tokens of each row."""
    ends, counts = output["unpadded_sequence_lengths"].tolist(), output["generation_lengths"].tolist()
    return [
        ids[end - count : end].tolist()
        for ids, end, count in zip(output["output_ids"], ends, counts, strict=True)
    ]


async def last_output(generation: GenerationInterface, data: BatchedDataDict[Any], **options: Any) -> Any:
    """The last output of `generate_async`, which is the one that a rollout keeps."""
    outputs = [output async for _, output in generation.generate_async(data, **options)]
    return outputs[-1]


@torch.no_grad()
def rescored_gap(model: PreTrainedModel, output: Mapping[str, Any]) -> float:
    """The largest difference between stored log-probs and those of one pass over each whole sequence."""
    gap = 0.0
    rows = zip(output["output_ids"], output["logprobs"], strict=True)
    ends, counts = output["unpadded_sequence_lengths"].tolist(), output["generation_lengths"].tolist()
    for (ids, logprobs), end, count in zip(rows, ends, counts, strict=True):
        assert not logprobs[: end - count].any() and not logprobs[end:].any()
        if count == 0:
            continue
        ids = ids[None, :end]
        whole = model(ids, attention_mask=torch.ones_like(ids)).logits[0, :-1].log_softmax(-1)
        expected = whole.gather(-1, ids[0, 1:, None])[:, 0]
        gap = max(gap, (expected[-count:] - logprobs[end - count : end]).abs().max().item())
    return gap
