import asyncio
from typing import Any

import pytest

from nemo_gym.local_engine import EngineSettings, Generation, LocalEngine, find_weights, generate
from nemo_gym.local_engine.engine_generation import PromptTooLongError, accepts_grammar, whole_character_ends
from nemo_gym.local_engine.prompt_ids import Conversation, only_token
from tests.support.engines import wait_until_slots_are_busy

from .conftest import Running

UNFILTERED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


async def prompt_of(engine: LocalEngine, text: str) -> list[int]:
    return await Conversation([{"role": "user", "content": text}], [], {}).prompt(engine, 2)


async def generated(engine: LocalEngine, text: str, **sampling: Any) -> Generation:
    prompt = await prompt_of(engine, text)
    return await generate(engine, prompt, UNFILTERED | {"n_predict": 16} | sampling, top_log_probs=0)


def test_every_sampled_token_has_its_log_probability(running: Running) -> None:
    generation: Generation = running.run(lambda engine: generated(engine, "Say hi", seed=1))
    assert len(generation.log_probs) == len(generation.token_ids) > 1
    assert all(log_prob <= 0 for log_prob in generation.log_probs)
    assert [info["id"] for info in generation.token_info] == generation.token_ids


def test_tokens_that_end_within_a_character_have_log_probabilities(running: Running) -> None:
    """The engine leaves them out; \U0001f4d6 is three tokens, \u23f0 is three."""

    async def forced(engine: LocalEngine) -> Generation:
        grammar = '%llguidance {}\nstart: "\U0001f4d6\u23f0\U0001f389 ok"\n'
        return await generated(engine, "Say hi", seed=1, grammar=grammar)

    generation: Generation = running.run(forced)
    assert generation.text == "\U0001f4d6\u23f0\U0001f389 ok"
    assert len(generation.log_probs) == len(generation.token_ids) > 6
    assert all(log_prob <= 0 for log_prob in generation.log_probs)


def test_log_probability_requested_later_equals_the_one_at_sampling(
    running: Running,
) -> None:
    async def both(engine: LocalEngine) -> tuple[Generation, Generation]:
        whole = await generated(engine, "Count to five.", temperature=0.0)
        stopped = await generated(
            engine, "Count to five.", temperature=0.0, stop=[whole.token_info[4]["token"]]
        )
        return whole, stopped

    whole, stopped = running.run(both)
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert stopped.log_probs == pytest.approx(whole.log_probs[: len(stopped.log_probs)], abs=0.05)


def test_stop_string_is_in_the_tokens_but_not_in_the_text(running: Running) -> None:
    async def stopped(engine: LocalEngine) -> tuple[Generation, Generation]:
        whole = await generated(engine, "Count to five.", temperature=0.0)
        return whole, await generated(engine, "Count to five.", temperature=0.0, stop=[whole.text[4:8]])

    whole, generation = running.run(stopped)
    assert generation.text == whole.text[:4]
    assert generation.ended_by == "stop"
    assert len(generation.log_probs) == len(generation.token_ids)


def test_same_seed_gives_the_same_text_beside_other_generations(running: Running) -> None:
    async def many(engine: LocalEngine) -> list[Generation]:
        alone = await generated(engine, "Tell me a story.", seed=7)
        others = [generated(engine, "Tell me a story.", seed=seed) for seed in (1, 2, 7, 3)]
        return [alone, *await asyncio.gather(*others)]

    alone, one, two, same, _ = running.run(many)
    assert alone.text == same.text
    assert one.text != two.text


def test_log_probabilities_are_those_before_temperature(running: Running) -> None:
    async def both(engine: LocalEngine) -> tuple[Generation, Generation]:
        cold = await generated(engine, "Say hi", temperature=0.0, n_predict=1)
        return cold, await generated(engine, "Say hi", temperature=5.0, top_k=1, n_predict=1)

    cold, hot = running.run(both)
    assert cold.token_ids == hot.token_ids
    assert cold.log_probs == pytest.approx(hot.log_probs, abs=1e-3)
    assert cold.log_probs[0] < -0.01


def test_context_is_not_larger_than_configured() -> None:
    """The engine itself rounds the context up to a multiple of 256."""
    small = Running(EngineSettings(find_weights(), slots=1, context=100))
    try:
        sampling = UNFILTERED | {"ignore_eos": True}
        generation: Generation = small.run(lambda engine: generate(engine, [1] * 93, sampling))
        assert (len(generation.token_ids), generation.ended_by) == (7, "length")
        with pytest.raises(PromptTooLongError):
            small.run(lambda engine: generate(engine, [1] * 100, sampling))
    finally:
        small.close()


def test_too_long_prompt_is_an_error_of_its_own_type(running: Running) -> None:
    with pytest.raises(PromptTooLongError):
        running.run(lambda engine: generate(engine, [1] * 600, UNFILTERED | {"n_predict": 1}))


def test_cancelled_generation_frees_its_slot(running: Running) -> None:
    async def cancelled(engine: LocalEngine) -> bool:
        long = [
            asyncio.create_task(generated(engine, "Go on.", n_predict=400, ignore_eos=True)) for _ in range(4)
        ]
        await wait_until_slots_are_busy(engine, 4)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        async with asyncio.timeout(60):
            return bool((await generated(engine, "Say hi", n_predict=2)).token_ids)

    assert running.run(cancelled)


def test_grammar_that_the_engine_cannot_compile_is_detected(running: Running) -> None:
    def grammar(schema: str) -> str:
        return f"%llguidance {{}}\nstart: %json {schema}\n"

    assert running.run(lambda engine: accepts_grammar(engine, grammar('{"type": "object"}')))
    assert not running.run(lambda engine: accepts_grammar(engine, grammar('{"type": "bogus"}')))


def test_conversation_continues_with_the_sampled_ids(running: Running) -> None:
    async def two_turns(engine: LocalEngine) -> tuple[list[int], list[int]]:
        eos = await only_token(engine, "<|im_end|>")
        prompt = await prompt_of(engine, "Say hi")
        # Ids that no tokeniser would produce for this text: "hi" as two letters.
        letters = [(await engine.call("/tokenize", {"content": letter}))["tokens"][-1] for letter in "hi"]
        turn = {"prompt_token_ids": prompt, "generation_token_ids": [*letters, 2], "generation_log_probs": []}
        messages = [
            {"role": "user", "content": "Say hi"},
            {"role": "assistant", "content": "hi", **turn},
            {"role": "user", "content": "Again"},
        ]
        return [*prompt, *letters, 2], await Conversation(messages, [], {}).prompt(engine, eos)

    seen, prompt = running.run(two_turns)
    assert prompt[: len(seen)] == seen
    assert len(prompt) > len(seen)


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        ([b"ab", b"c"], [0, 1]),
        ([b"\xf0\x9f", b"\x93", b"\x96"], [2]),
        ([b"a\xe2", b"\x8f", b"\xb0b"], [2]),
        ([b"\xc3", b"\xbc"], [1]),
        ([b"a", b"", b"b"], [0, 1, 2]),
    ],
)
def test_tokens_that_end_within_a_character_are_recognised(pieces: list[bytes], ends: list[int]) -> None:
    assert whole_character_ends(list(range(len(pieces))), dict(enumerate(pieces))) == ends
