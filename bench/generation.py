"""`TransformersGeneration`: tokens per second with 32 concurrent requests, compared with one at a time.

The model is SmolLM2-135M in float32, as the examples train it. If its file is missing, a model of the same
shape with random weights is used, which costs the same. "alone" is the same backend with one request at a
time; `model.generate` is measured for comparison. They alternate, and the figure is the median of the ratios
of each round, because a busy machine slows down all of them. Requests end only at their maximum length, so
that all do the same work.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bench.report import Bar, report
from nemo_gym.errors import ConfigError
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.interfaces import GenerationConfig
from nemo_rl.models.generation.transformers_generation import TransformersGeneration
from nemo_rl.models.weights import load_policy

RATIO_BAR = 0.25
"""Tokens per second: one request at a time / 32 at once."""
ROUNDS = 3
CONCURRENT = 32
NEW_TOKENS = 48
ALONE = 3
"""Requests of a round that run one at a time; the rate does not depend on their number."""
GROUP = 8
COMPARED = [("alone", "32 at once"), ("alone", "4 groups of 8"), ("model.generate", "32 at once")]

Prompts = list[list[int]]


class NoEnd:
    """A tokenizer without an end-of-sequence token; the benchmark needs nothing else."""

    eos_token_id = None
    pad_token_id = 0


def load_model() -> PreTrainedModel:
    try:
        return load_policy().model
    except ConfigError:
        print("  SmolLM2-135M not found (get it with ng_fetch_model); using random weights of the same shape")
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=49152,
                hidden_size=576,
                intermediate_size=1536,
                num_hidden_layers=30,
                num_attention_heads=9,
                num_key_value_heads=3,
                max_position_embeddings=8192,
                tie_word_embeddings=True,
            )
        )


def config() -> GenerationConfig:
    return {
        "backend": "transformers",
        "max_new_tokens": NEW_TOKENS,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "stop_token_ids": None,
        "stop_strings": None,
    }


def different_prompts(count: int) -> Prompts:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 60, (count,), generator=generator).tolist()
    return [torch.randint(20, 49000, (length,), generator=generator).tolist() for length in lengths]


async def one(generation: TransformersGeneration, prompt: list[int], seed: int) -> int:
    data = BatchedDataDict[Any](
        input_ids=torch.tensor([prompt]), input_lengths=torch.tensor([len(prompt)]), seeds=[seed]
    )
    async for _, output in generation.generate_async(data):
        generated = int(output["generation_lengths"][0])
    return generated


async def at_once(generation: TransformersGeneration, prompts: Prompts) -> int:
    return sum(await asyncio.gather(*(one(generation, prompt, seed) for seed, prompt in enumerate(prompts))))


async def in_turn(generation: TransformersGeneration, prompts: Prompts) -> int:
    return sum([await one(generation, prompt, seed) for seed, prompt in enumerate(prompts)])


def by_generate(model: PreTrainedModel, prompts: Prompts) -> int:
    generated = 0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=NEW_TOKENS,
                pad_token_id=0,
            )
        generated += output.shape[1] - ids.shape[1]
    return generated


def rate(run: Callable[[], int], generation: TransformersGeneration | None = None) -> float:
    """Tokens per second, including the time for the prompts, without the cache of earlier rounds."""
    if generation is not None:
        generation.invalidate_kv_cache()
    began_s = time.perf_counter()
    generated = run()
    return generated / (time.perf_counter() - began_s)


def measure(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[Bar]:
    prompts = different_prompts(CONCURRENT)
    groups = [prompt for prompt in prompts[: CONCURRENT // GROUP] for _ in range(GROUP)]
    with (
        TransformersGeneration(model, tokenizer, config(), max_model_len=512, max_batch_size=1) as alone,
        TransformersGeneration(model, tokenizer, config(), max_model_len=512) as batched,
    ):
        runs: dict[str, Callable[[], float]] = {
            "alone": lambda: rate(lambda: asyncio.run(in_turn(alone, prompts[:ALONE])), alone),
            "32 at once": lambda: rate(lambda: asyncio.run(at_once(batched, prompts)), batched),
            "4 groups of 8": lambda: rate(lambda: asyncio.run(at_once(batched, groups)), batched),
            "model.generate": lambda: rate(lambda: by_generate(model, prompts[:1])),
        }
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                rates[name].append(run())
    print("  tokens/s: " + ", ".join(f"{name} {median(values):.0f}" for name, values in rates.items()))
    return [Bar(f"{slow} / {fast}", ratio(rates[slow], rates[fast]), RATIO_BAR) for slow, fast in COMPARED]


def ratio(ones: list[float], others: list[float]) -> float:
    return median(one / other for one, other in zip(ones, others, strict=True))


def main() -> bool:
    model = load_model().eval()
    model.generation_config.eos_token_id = None
    return report("generation", measure(model, NoEnd()))  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
