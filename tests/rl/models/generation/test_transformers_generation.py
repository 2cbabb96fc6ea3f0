import asyncio
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from nemo_rl.experience.failures import NoHealthyShards
from nemo_rl.models.generation.transformers_generation import TransformersGeneration
from tests.support.generations import (
    batch_of,
    generated_tokens,
    generation_config,
    last_output,
    random_prompts,
    rescored_gap,
)
from tests.support.tiny_models import EOS_ID, WORDS, tiny_gpt2, tiny_llama, tiny_tokenizer

pytestmark = pytest.mark.torch

LLAMA = tiny_llama()
TOKENIZER = tiny_tokenizer()


def new_generation(
    model: PreTrainedModel = LLAMA, *, max_model_len: int = 100, max_batch_size: int = 5, **changes: Any
) -> TransformersGeneration:
    return TransformersGeneration(
        model,
        TOKENIZER,
        generation_config(**changes),
        max_model_len=max_model_len,
        max_batch_size=max_batch_size,
        seed=0,
    )


@pytest.mark.parametrize("family", ["llama", "llama-eager", "llama-training", "gpt2"])
def test_logprobs_are_those_of_one_pass_over_whole_conversations(family: str) -> None:
    model = tiny_gpt2() if family == "gpt2" else tiny_llama()
    if family == "llama-eager":
        model.set_attn_implementation("eager")
    if family == "llama-training":
        model.train()
    prompts = [*random_prompts(8, longest=30), *[list(range(4, 30))] * 4]
    with new_generation(model) as generation:
        for turn in range(3):
            output = generation.generate(batch_of(prompts, seeds=list(range(len(prompts)))))
            assert rescored_gap(model, output) < 1e-4
            ends = output["unpadded_sequence_lengths"].tolist()
            sequences = zip(output["output_ids"], ends, strict=True)
            prompts = [[*ids[:end].tolist(), 6, 7 + turn][:95] for ids, end in sequences]


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt_neox", "mixtral"])
def test_models_of_other_families_give_correct_logprobs(family: str) -> None:
    config = AutoConfig.for_model(
        family,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with new_generation(model) as generation:
        data = batch_of([*random_prompts(5, longest=30), *[list(range(4, 30))] * 3])
        assert rescored_gap(model, generation.generate(data)) < 1e-4


def test_concurrent_coroutines_get_the_logprobs_of_one_pass_over_each_sequence() -> None:
    prompts = [*random_prompts(6, longest=40), *[list(range(4, 40))] * 6]

    async def run() -> list[Any]:
        requests = [batch_of([prompt], seeds=[seed]) for seed, prompt in enumerate(prompts)]
        with new_generation() as generation:
            return await asyncio.gather(*(last_output(generation, request) for request in requests))

    for prompt, output in zip(prompts, asyncio.run(run()), strict=True):
        assert output["output_ids"][0, : len(prompt)].tolist() == prompt
        assert rescored_gap(LLAMA, output) < 1e-4


def test_output_has_the_shapes_and_types_of_the_contract() -> None:
    prompts = [[5, 6, 7], [8]]
    with new_generation() as generation:
        output = generation.generate(batch_of(prompts, seeds=[1, 2]))
    lengths = output["unpadded_sequence_lengths"]
    assert output["output_ids"].shape == output["logprobs"].shape == (2, int(lengths.max()))
    assert output["output_ids"].dtype == torch.int64
    assert output["logprobs"].dtype == torch.float32
    assert output["generation_lengths"].dtype == lengths.dtype == torch.int64
    assert output["truncated"].dtype == torch.bool
    assert (lengths - output["generation_lengths"]).tolist() == [3, 1]
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in output.values())
    for ids, end in zip(output["output_ids"], lengths.tolist(), strict=True):
        assert not ids[end:].any()


def test_same_seed_and_prompt_give_the_same_tokens_alone_and_among_others() -> None:
    prompts = random_prompts(9, longest=30)
    with new_generation() as generation:
        together = generated_tokens(generation.generate(batch_of(prompts, seeds=list(range(9)))))
    for seed, prompt in enumerate(prompts):
        with new_generation() as generation:
            alone = generated_tokens(generation.generate(batch_of([prompt], seeds=[seed])))
        assert together[seed] == alone[0]


def test_requests_without_seeds_differ_and_depend_on_the_seed_of_the_backend() -> None:
    data = batch_of([[5, 6, 7]] * 4)
    runs = []
    for _ in range(2):
        with new_generation() as generation:
            runs.append(generated_tokens(generation.generate(data)))
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) == 4


@pytest.mark.parametrize("seed", [-1, 2**64 + 5, torch.tensor(7)])
def test_any_integer_is_a_seed(seed: Any) -> None:
    with new_generation() as generation:
        assert generation.generate(batch_of([[5, 6]], seeds=[seed])).size == 1


def test_greedy_and_temperature_0_take_the_likeliest_tokens_with_their_raw_logprobs() -> None:
    data = batch_of(random_prompts(4, longest=20))
    with new_generation(temperature=1.3, top_k=7) as sampling, new_generation(temperature=0) as cold:
        outputs = [sampling.generate(data, greedy=True), cold.generate(data, greedy=False)]
    assert generated_tokens(outputs[0]) == generated_tokens(outputs[1])
    for output in outputs:
        assert rescored_gap(LLAMA, output) < 1e-4
    ids = outputs[0]["output_ids"][:1, : data["input_lengths"][0]]
    assert generated_tokens(outputs[0])[0][0] == int(LLAMA(ids).logits[0, -1].argmax())


def test_greedy_and_sampled_requests_share_a_batch() -> None:
    prompt = [5, 6, 7]

    async def run(generation: TransformersGeneration) -> list[Any]:
        return await asyncio.gather(
            last_output(generation, batch_of([prompt], seeds=[3])),
            last_output(generation, batch_of([prompt], seeds=[3]), greedy=True),
        )

    with new_generation() as generation:
        sampled, greedy = asyncio.run(run(generation))
        for together, is_greedy in ((sampled, False), (greedy, True)):
            alone = generation.generate(batch_of([prompt], seeds=[3]), greedy=is_greedy)
            assert generated_tokens(together) == generated_tokens(alone)


def test_raw_mode_gives_raw_logprobs() -> None:
    config = generation_config(temperature=2.0, top_k=5)
    generation = TransformersGeneration(LLAMA, TOKENIZER, config, max_model_len=64, logprobs_mode="raw")
    with generation:
        assert rescored_gap(LLAMA, generation.generate(batch_of([[5, 6], [7]], seeds=[1, 2]))) < 1e-4


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 14), st.integers(1, 12), st.integers(1, 12))
def test_room_is_limited_by_max_new_tokens_and_max_model_len(
    prompt_length: int, max_new_tokens: int, max_model_len: int
) -> None:
    room = max(0, min(max_new_tokens, max_model_len - prompt_length))
    prompt = list(range(4, 4 + prompt_length))
    with new_generation(max_model_len=max_model_len, max_new_tokens=max_new_tokens) as generation:
        output = generation.generate(batch_of([prompt], seeds=[prompt_length]))
    generated = generated_tokens(output)[0]
    ended = bool(generated) and generated[-1] == EOS_ID
    assert len(generated) == room or ended
    assert output["truncated"].tolist() == [room > 0 and not ended]
    assert output["unpadded_sequence_lengths"].tolist() == [prompt_length + len(generated)]


def test_padding_on_the_right_changes_nothing() -> None:
    prompts = random_prompts(4, longest=12)
    with new_generation() as generation:
        tight = [generated_tokens(generation.generate(batch_of([p], seeds=[9])))[0] for p in prompts]
        wide = generated_tokens(generation.generate(batch_of(prompts, width=40, seeds=[9] * 4)))
    assert tight == wide


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 30), st.data())
def test_a_stop_string_ends_generation_at_its_last_token_and_stays_in_the_output(
    seed: int, data: st.DataObject
) -> None:
    prompt = [5, 6, 7]
    with new_generation() as generation:
        free = generated_tokens(generation.generate(batch_of([prompt], seeds=[seed])))[0]
        first = data.draw(st.integers(0, len(free) - 1))
        last = data.draw(st.integers(first, min(len(free) - 1, first + 2)))
        text = " ".join(WORDS[token] for token in free[first : last + 1])
        stopped = generation.generate(batch_of([prompt], seeds=[seed], stop_strings=[[text, "w99"]]))
    count = next(n for n in range(1, len(free) + 1) if text in " ".join(WORDS[token] for token in free[:n]))
    assert generated_tokens(stopped)[0] == free[:count]
    assert stopped["truncated"].tolist() == [False]


@dataclass(frozen=True)
class VariedRun:
    """Twelve tokens after 5, 6, 7 at temperature 3, without stops; none of their words is in another."""

    seed: int
    tokens: list[int]


@cache
def varied_run() -> VariedRun:
    seeds = list(range(200))
    with new_generation(temperature=3.0, max_new_tokens=12, max_batch_size=50) as generation:
        runs = generated_tokens(generation.generate(batch_of([[5, 6, 7]] * len(seeds), seeds=seeds)))
    candidates = zip(seeds, runs, strict=True)
    return next(
        VariedRun(seed, tokens) for seed, tokens in candidates if len({t for t in tokens if t >= 16}) == 12
    )


def test_a_stop_at_the_last_allowed_token_is_not_a_truncation() -> None:
    free = varied_run().tokens
    text = f"{WORDS[free[4]]} {WORDS[free[5]]}"
    for room, truncated in ((5, True), (6, False), (7, False)):
        with new_generation(temperature=3.0, max_new_tokens=room, stop_strings=[text]) as generation:
            output = generation.generate(batch_of([[5, 6, 7]], seeds=[varied_run().seed]))
        assert generated_tokens(output)[0] == free[: min(room, 6)]
        assert output["truncated"].tolist() == [truncated]


def test_stops_of_the_configuration_and_of_the_request_both_apply() -> None:
    free = varied_run().tokens
    texts = [[WORDS[free[4]]], None, [WORDS[free[10]]]]
    data = batch_of([[5, 6, 7]] * 3, seeds=[varied_run().seed] * 3, stop_strings=texts)
    with new_generation(temperature=3.0, stop_strings=[WORDS[free[6]]]) as generation:
        texts_first = generation.generate(data)
    with new_generation(temperature=3.0, stop_token_ids=[free[8]]) as generation:
        ids_first = generation.generate(data)
    assert [len(tokens) for tokens in generated_tokens(texts_first)] == [5, 7, 7]
    assert [len(tokens) for tokens in generated_tokens(ids_first)] == [5, 9, 9]
    assert not texts_first["truncated"].any() and not ids_first["truncated"].any()


def test_end_of_sequence_token_ends_generation_and_stays_in_the_output() -> None:
    free = varied_run().tokens
    model = tiny_llama()
    model.generation_config.eos_token_id = [EOS_ID, free[3]]
    with new_generation(model, temperature=3.0) as generation:
        output = generation.generate(batch_of([[5, 6, 7]], seeds=[varied_run().seed]))
    assert generated_tokens(output)[0] == free[:4]
    assert not output["truncated"].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1}, "temperature must be 0 or more"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more"),
        ({"max_model_len": 0}, "max_model_len must be 1 or more"),
        ({"max_batch_size": 0}, "max_batch_size must be 1 or more"),
        ({"max_model_len": 600}, "more than the model's 512 positions"),
        ({"stop_strings": "END"}, "must be a list"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new_generation(**changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (batch_of([[5, 64]]), "input_ids\\[0\\] has tokens that are not within 0 to 63"),
        (batch_of([[5], [-1]]), "input_ids\\[1\\]"),
        (batch_of([[]], width=3), "input_lengths\\[0\\] is 0"),
        (batch_of([[5]], seeds=[1, 2]), "seeds has 2 entries for 1 prompts"),
        (batch_of([[5]], stop_strings=[["a"], None]), "stop_strings has 2 entries"),
        (batch_of([[5]], stop_strings=[[""]]), "non-empty string"),
    ],
)
def test_invalid_requests_are_rejected(data: Any, message: str) -> None:
    with new_generation() as generation, pytest.raises(ValueError, match=message):
        generation.generate(data)


def test_generate_async_accepts_one_prompt_only() -> None:
    with new_generation() as generation, pytest.raises(AssertionError, match="one prompt, not 2"):
        asyncio.run(last_output(generation, batch_of([[5], [6]])))


def test_an_empty_batch_gives_an_empty_output() -> None:
    data = batch_of([[5]])
    with new_generation() as generation:
        assert generation.generate(data.slice(0, 0))["output_ids"].shape == (0, 0)


def test_attention_that_is_not_full_is_rejected_if_it_would_change_results() -> None:
    model = tiny_llama()
    model.config.sliding_window = 64
    with pytest.raises(ValueError, match="more than the 64 tokens"):
        new_generation(model, max_model_len=100)
    new_generation(model, max_model_len=64).close()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        new_generation(model, max_model_len=64)


def test_metrics_contain_tokens_batch_size_and_speed() -> None:
    with new_generation() as generation:
        assert generation.get_logger_metrics()["tokens_per_s"] == 0
        output = generation.generate(batch_of([list(range(4, 24))] * 4, seeds=[1] * 4))
        metrics = generation.get_logger_metrics()
    assert metrics["requests"] == 4
    assert metrics["prompt_tokens"] == 80
    assert metrics["generated_tokens"] == int(output["generation_lengths"].sum())
    assert metrics["tokens_per_s"] == pytest.approx(metrics["generated_tokens"] / metrics["busy_s"])
    assert 1 <= metrics["mean_batch_size"] <= 4


def test_finish_generation_frees_the_cache_and_later_requests_work() -> None:
    data = batch_of([[5, 6, 7]], seeds=[1])
    with new_generation() as generation:
        assert generation.prepare_for_generation()
        before = generation.generate(data)
        assert generation.finish_generation()
        assert not generation.invalidate_kv_cache()
        assert generated_tokens(generation.generate(data)) == generated_tokens(before)
        assert generation.init_collective("127.0.0.1", 0, 1) == []


def test_prompt_without_room_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with new_generation(max_model_len=4) as generation:
        output = generation.generate(batch_of([[5, 6, 7, 8]]))
    assert output["generation_lengths"].tolist() == [0]
    assert "a prompt of 4 tokens leaves no room to generate in max_model_len 4" in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons warn about threads in a fork
def test_backend_built_before_a_fork_raises_in_the_child() -> None:
    with new_generation() as generation:
        generation.generate(batch_of([[5, 6]]))
        child = os.fork()
        if not child:
            try:
                generation.generate(batch_of([[5, 6]]))
            except NoHealthyShards as error:
                os._exit(0 if "after the fork" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
