"""Rollouts rebuilt from the recorded calls of their model server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_rl.environments.token_capture import RecordedCall, rebuilt
from tests.support.toy_tokenizer import ToyTokenizer


def call(prompt: list[int], generation: list[int]) -> RecordedCall:
    log_probs = [-0.1] * len(generation)
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": log_probs,
    }


FIRST = call([1, 2], [3, 9])
SECOND = call([1, 2, 3, 9, 4], [5, 9])
THIRD = call([1, 2, 3, 9, 4, 5, 9, 6], [7, 9])


def test_calls_are_sorted() -> None:
    captured = rebuilt([THIRD, FIRST, SECOND, FIRST])
    assert captured.calls == [FIRST, SECOND, THIRD] and captured.mask_reason is None
    assert [item["generation_token_ids"] for item in captured.items()] == [[3, 9], [5, 9], [7, 9]]


def test_retry_that_was_not_continued_is_left_out() -> None:
    captured = rebuilt([call([1, 2], [8, 9]), FIRST, SECOND])
    assert captured.calls == [FIRST, SECOND] and captured.mask_reason is None


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([FIRST, SECOND, call(SECOND["prompt_token_ids"], [8, 9])], "branch"),
        ([FIRST, SECOND, call([1, 2, 3, 9, 8], [8, 9])], "branch"),
        ([FIRST, call([50, 51], [52])], "start 2 conversations"),
        ([call([1, 2], [8]), call([1, 2], [7])], "start 2 conversations"),
    ],
)
def test_ambiguous_calls_are_masked(calls: list[Any], reason: str) -> None:
    captured = rebuilt(calls)
    assert captured.mask_reason is not None and reason in captured.mask_reason
    assert captured.calls


def test_calls_without_sampled_tokens_are_ignored() -> None:
    assert rebuilt([]).calls == []
    assert rebuilt([FIRST, call([1, 2], [])]).calls == [FIRST]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=5), st.randoms())
def test_every_chain_is_rebuilt(turns: list[tuple[int, int]], random: Any) -> None:
    sequence, calls = [100], []
    for number, (observed, generated) in enumerate(turns):
        sequence = sequence + [200 + number] * observed
        calls.append(call(list(sequence), [300 + number] * generated))
        sequence = sequence + [300 + number] * generated
    shuffled = random.sample(calls, len(calls))
    captured = rebuilt(shuffled)
    assert captured.calls == calls and captured.mask_reason is None


@pytest.mark.torch
@pytest.mark.parametrize(("calls", "is_masked"), [([SECOND, FIRST], False), ([FIRST, call([7], [8])], True)])
def test_rollout_without_tokens_is_rebuilt_from_its_calls_and_masked_if_they_are_ambiguous(
    calls: list[Any], is_masked: bool
) -> None:
    from nemo_rl.environments.gym_results import gym_result
    from nemo_rl.experience.integrity import is_flagged

    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    rollout = {"reward": 1.0, "response": {"output": [message]}, "recorded_model_calls": calls}
    result = gym_result(rollout, ToyTokenizer())
    assert is_flagged(result["full_result"]) == is_masked
    if not is_masked:
        tokens = [entry["token_ids"].tolist() for entry in result["message_log"]]
        assert tokens == [[1, 2], [3, 9], [4], [5, 9]]
