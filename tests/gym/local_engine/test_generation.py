import asyncio
from typing import Any

import pytest

from nemo_gym.local_engine import EngineSettings, Generation, LocalEngine, find_weights, generate
from nemo_gym.local_engine.generation import PromptTooLongError, takes_grammar, whole_character_ends
from nemo_gym.local_engine.prompt_ids import Conversation, only_token

from .conftest import Running

UNTOUCHED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


async def prompt_of(engine: LocalEngine, text: str) -> list[int]:
    return await Conversation([{"role": "user", "content": text}], [], {}).prompt(engine, 2)


async def spoken(engine: LocalEngine, text: str, **sampling: Any) -> Generation:
    prompt = await prompt_of(engine, text)
    return await generate(engine, prompt, UNTOUCHED | {"n_predict": 16} | sampling, top_log_probs=0)


def test_every_sampled_token_has_its_log_probability(running: Running) -> None:
    said: Generation = running.run(lambda engine: spoken(engine, "Say hi", seed=1))
    assert len(said.log_probs) == len(said.token_ids) > 1
    assert all(log_prob <= 0 for log_prob in said.log_probs)
    assert [told["id"] for told in said.told] == said.token_ids


def test_tokens_that_end_within_a_character_have_theirs_too(running: Running) -> None:
    """The engine leaves them out; \U0001f4d6 is three tokens, \u23f0 is three."""

    async def forced(engine: LocalEngine) -> Generation:
        grammar = '%llguidance {}\nstart: "\U0001f4d6\u23f0\U0001f389 ok"\n'
        return await spoken(engine, "Say hi", seed=1, grammar=grammar)

    said: Generation = running.run(forced)
    assert said.text == "\U0001f4d6\u23f0\U0001f389 ok"
    assert len(said.log_probs) == len(said.token_ids) > 6
    assert all(log_prob <= 0 for log_prob in said.log_probs)


def test_log_probability_that_is_asked_for_later_is_the_one_that_would_have_been_told(
    running: Running,
) -> None:
    async def both(engine: LocalEngine) -> tuple[Generation, Generation]:
        whole = await spoken(engine, "Count to five.", temperature=0.0)
        stopped = await spoken(engine, "Count to five.", temperature=0.0, stop=[whole.told[4]["token"]])
        return whole, stopped

    whole, stopped = running.run(both)
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert stopped.log_probs == pytest.approx(whole.log_probs[: len(stopped.log_probs)], abs=0.05)


def test_stop_string_ends_the_text_before_it_and_the_tokens_after_it(running: Running) -> None:
    async def stopped(engine: LocalEngine) -> tuple[Generation, Generation]:
        whole = await spoken(engine, "Count to five.", temperature=0.0)
        return whole, await spoken(engine, "Count to five.", temperature=0.0, stop=[whole.text[4:8]])

    whole, said = running.run(stopped)
    assert said.text == whole.text[:4]
    assert said.ended_by == "stop"
    assert len(said.log_probs) == len(said.token_ids)


def test_same_seed_gives_the_same_text_alone_and_in_company(running: Running) -> None:
    async def many(engine: LocalEngine) -> list[Generation]:
        alone = await spoken(engine, "Tell me a story.", seed=7)
        others = [spoken(engine, "Tell me a story.", seed=seed) for seed in (1, 2, 7, 3)]
        return [alone, *await asyncio.gather(*others)]

    alone, one, two, same, _ = running.run(many)
    assert alone.text == same.text
    assert one.text != two.text


def test_log_probabilities_are_those_before_temperature(running: Running) -> None:
    async def both(engine: LocalEngine) -> tuple[Generation, Generation]:
        cold = await spoken(engine, "Say hi", temperature=0.0, n_predict=1)
        return cold, await spoken(engine, "Say hi", temperature=5.0, top_k=1, n_predict=1)

    cold, hot = running.run(both)
    assert cold.token_ids == hot.token_ids
    assert cold.log_probs == pytest.approx(hot.log_probs, abs=1e-3)
    assert cold.log_probs[0] < -0.01


def test_context_is_the_one_that_was_asked_for() -> None:
    """The engine rounds it up to a multiple of 256."""
    small = Running(EngineSettings(find_weights(), slots=1, context=100))
    try:
        sampling = UNTOUCHED | {"ignore_eos": True}
        said: Generation = small.run(lambda engine: generate(engine, [1] * 93, sampling))
        assert (len(said.token_ids), said.ended_by) == (7, "length")
        with pytest.raises(PromptTooLongError):
            small.run(lambda engine: generate(engine, [1] * 100, sampling))
    finally:
        small.close()


def test_prompt_without_room_is_told_as_such(running: Running) -> None:
    with pytest.raises(PromptTooLongError):
        running.run(lambda engine: generate(engine, [1] * 600, UNTOUCHED | {"n_predict": 1}))


def test_cancelled_generation_leaves_its_slot(running: Running) -> None:
    async def cancelled(engine: LocalEngine) -> bool:
        long = [
            asyncio.create_task(spoken(engine, "Go on.", n_predict=400, ignore_eos=True)) for _ in range(4)
        ]
        await asyncio.sleep(0.3)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        async with asyncio.timeout(5):
            return bool((await spoken(engine, "Say hi", n_predict=2)).token_ids)

    assert running.run(cancelled)


def test_grammar_that_the_engine_cannot_use_is_noticed(running: Running) -> None:
    def grammar(schema: str) -> str:
        return f"%llguidance {{}}\nstart: %json {schema}\n"

    assert running.run(lambda engine: takes_grammar(engine, grammar('{"type": "object"}')))
    assert not running.run(lambda engine: takes_grammar(engine, grammar('{"type": "bogus"}')))


def test_conversation_goes_on_with_the_ids_that_were_sampled(running: Running) -> None:
    async def two_turns(engine: LocalEngine) -> tuple[list[int], list[int]]:
        eos = await only_token(engine, "<|im_end|>")
        prompt = await prompt_of(engine, "Say hi")
        # Ids that no tokeniser would choose for their text: "hi" as two letters.
        letters = [(await engine.ask("/tokenize", {"content": letter}))["tokens"][-1] for letter in "hi"]
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
def test_tokens_within_a_character_are_known(pieces: list[bytes], ends: list[int]) -> None:
    assert whole_character_ends(list(range(len(pieces))), dict(enumerate(pieces))) == ends
