"""Rollouts of agents as message logs of tokens."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_rl.environments.gym_results import OutputMarkers, gym_result
from nemo_rl.experience.message_log import flat_logprobs, flat_token_ids, token_loss_mask
from tests.support.toy_tokenizer import ToyTokenizer

pytestmark = pytest.mark.torch

REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
TOOL_OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "8"}
TOKEN_FIELDS = {"prompt_token_ids", "generation_token_ids", "generation_log_probs"}


def tokens(prompt: list[int], generation: list[int], log_probs: list[Any]) -> dict[str, Any]:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": log_probs,
    }


def call(prompt: list[int], generation: list[int], log_probs: list[Any]) -> dict[str, Any]:
    return {"type": "function_call", "name": "add", **tokens(prompt, generation, log_probs)}


def message(
    prompt: list[int], generation: list[int], log_probs: list[Any], text: str = "4"
) -> dict[str, Any]:
    part = {"type": "output_text", "text": text}
    return {"type": "message", "content": [part], **tokens(prompt, generation, log_probs)}


def rollout(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "5 6"}]},
        "response": {"id": "r", "output": list(output)},
        "reward": 1.0,
        **fields,
    }


def two_turns(**changes: Any) -> dict[str, Any]:
    first = call([5, 6], changes.get("first", [7, 9]), changes.get("first_log_probs", [-0.1, -0.2]))
    second = message(changes.get("second_prompt", [5, 6, 7, 9, 8]), [4], [-0.3])
    return rollout(REASONING, first, TOOL_OUTPUT, second)


def log_of(full_result: dict[str, Any]) -> list[tuple[str, list[int]]]:
    log = gym_result(full_result, ToyTokenizer())["message_log"]
    return [(message["role"], message["token_ids"].tolist()) for message in log]


def test_read_tokens_are_user_messages_and_sampled_tokens_assistant_messages() -> None:
    result = gym_result(two_turns(), ToyTokenizer())
    assert log_of(two_turns()) == [("user", [5, 6]), ("assistant", [7, 9]), ("user", [8]), ("assistant", [4])]
    assert all(message["content"] == "" for message in result["message_log"])
    assert token_loss_mask(result["message_log"]).tolist() == [0, 0, 1, 1, 0, 1]
    torch.testing.assert_close(
        flat_logprobs(result["message_log"]), torch.tensor([0.0, 0.0, -0.1, -0.2, 0.0, -0.3])
    )
    assert result["input_message_log"] == result["message_log"][:1]
    assert {message["token_ids"].dtype for message in result["message_log"]} == {torch.int64}


def test_full_result_has_texts_in_place_of_tokens() -> None:
    full_result = gym_result(two_turns(), ToyTokenizer())["full_result"]
    reasoning, first, tool_output, second = full_result["response"]["output"]
    assert not TOKEN_FIELDS & {*first, *second}
    assert (first["prompt_str"], first["generation_str"], first["name"]) == ("5 6", "7 9", "add")
    assert (second["prompt_str"], second["generation_str"]) == ("5 6 7 9 8", "4")
    assert (reasoning, tool_output) == (REASONING, TOOL_OUTPUT)
    assert (full_result["reward"], full_result["response"]["id"]) == (1.0, "r")


def test_input_is_not_changed_and_gives_the_same_result_again() -> None:
    given, before = two_turns(), copy.deepcopy(two_turns())
    first, second = (gym_result(given, ToyTokenizer()) for _ in range(2))
    assert given == before
    assert first["full_result"] == second["full_result"]
    assert torch.equal(flat_token_ids(first["message_log"]), flat_token_ids(second["message_log"]))


def test_retokenised_history_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"non-contiguous history.*item 3.*at token 2"):
        log_of(two_turns(second_prompt=[5, 6, 3, 9, 8]))


def test_dropped_history_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"non-contiguous history.*at token 3"):
        log_of(two_turns(second_prompt=[5, 6, 7]))


def test_call_without_sampled_tokens_is_part_of_the_next_prompt() -> None:
    full_result = two_turns(first=[], first_log_probs=[])
    assert log_of(full_result) == [("user", [5, 6, 7, 9, 8]), ("assistant", [4])]
    untouched = gym_result(full_result, ToyTokenizer())["full_result"]["response"]["output"][1]
    assert untouched == call([5, 6], [], [])


def test_error_for_a_rollout_without_tokens_says_prompt_length_and_output() -> None:
    with pytest.raises(ValueError, match=r"no generation data: the prompt has 1 items.*items \(reasoning\)"):
        log_of(rollout(REASONING))
    with pytest.raises(ValueError, match=r"no generation data: the prompt has 2 tokens.*function_call"):
        log_of(rollout(call([5, 6], [], [])))


@pytest.mark.parametrize("log_prob", [float("nan"), None])
def test_log_probability_that_is_nan_or_null_is_refused(log_prob: float | None) -> None:
    with pytest.raises(RuntimeError, match="item 1 of the output has NaN"):
        log_of(two_turns(first_log_probs=[-0.1, log_prob]))


@pytest.mark.parametrize("log_probs", [[-0.1], [], None])
def test_tokens_without_one_log_probability_each_are_refused(log_probs: Any) -> None:
    with pytest.raises(AssertionError, match="2 sampled tokens"):
        log_of(two_turns(first_log_probs=log_probs))


def test_tokens_without_their_prompt_are_refused() -> None:
    with pytest.raises(AssertionError, match="no prompt_token_ids"):
        log_of(rollout({"type": "message", "generation_token_ids": [4], "generation_log_probs": [0.0]}))


@pytest.mark.parametrize("reply", [None, [], "text", 3])
def test_response_that_is_not_an_object_is_refused(reply: Any) -> None:
    with pytest.raises(AssertionError, match="not a JSON object"):
        gym_result(reply, ToyTokenizer())


def flags(item: dict[str, Any], **markers: Any) -> tuple[bool, bool]:
    result = gym_result(rollout(item), ToyTokenizer(), OutputMarkers(**markers))
    assistant = result["message_log"][1]
    return assistant["is_invalid_tool_call"], assistant["has_malformed_thinking"]


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"text": text}], **tokens([5], [4], [0.0])}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ok", (False, False)),
        ("ok <think>", (False, True)),
        ("</think> ok", (False, True)),
        ("<tool_call>{}", (True, False)),
        ("</function_call>", (True, False)),
        ("<think><function_call>", (True, True)),
    ],
)
def test_message_with_a_marker_left_in_it_is_flagged(text: str, expected: tuple[bool, bool]) -> None:
    assert flags(message([5], [4], [0.0], text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think> a </think>", (False, False)),
        ("<think> <think>", (False, True)),
        ("</think></think>", (False, True)),
        ("<tool_call>", (True, False)),
    ],
)
def test_reasoning_may_have_each_thinking_tag_once(text: str, expected: tuple[bool, bool]) -> None:
    assert flags(reasoning(text)) == expected


@pytest.mark.parametrize(
    "item",
    [
        call([5], [4], [0.0]),
        {"type": "message", "content": [], **tokens([5], [4], [0.0])},
        {"type": "reasoning", **tokens([5], [4], [0.0])},
    ],
)
def test_item_without_text_has_no_flag(item: dict[str, Any]) -> None:
    assert flags(item) == (False, False)


def test_markers_are_configurable() -> None:
    assert flags(message([5], [4], [0.0], "[CALL] <think>"), tool_call=("[CALL]",), thinking=()) == (
        True,
        False,
    )


TURNS = st.lists(
    st.tuples(st.lists(st.integers(3, 60), max_size=4), st.lists(st.integers(3, 60), max_size=5)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(TURNS)
def test_log_has_all_tokens_in_order_and_only_sampled_ones_in_the_loss_mask(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    """For any turns: empty prompts, empty generations, items without tokens between them."""
    seen: list[int] = []
    mask: list[int] = []
    output: list[dict[str, Any]] = []
    for read, generation in turns:
        prompt = seen + read
        output += [REASONING, message(prompt, generation, [-0.5] * len(generation)), TOOL_OUTPUT]
        if generation:
            mask += [0] * (len(prompt) - len(mask)) + [1] * len(generation)
            seen = prompt + generation
    if not mask:
        with pytest.raises(ValueError, match="no generation data"):
            log_of(rollout(*output))
        return
    log = gym_result(rollout(*output), ToyTokenizer())["message_log"]
    assert flat_token_ids(log).tolist() == seen
    assert token_loss_mask(log).tolist() == mask
    assert [one["role"] for one in log] == ["user", "assistant"] * (len(log) // 2)


@settings(deadline=None)
@given(TURNS, st.data())
def test_any_changed_token_of_the_history_is_refused(
    turns: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    seen = [5]
    output = []
    for read, generation in [*turns, ([8], [9])]:
        prompt, sampled = seen + read, [*generation, 7]
        output.append(message(prompt, sampled, [-0.5] * len(sampled)))
        seen = prompt + sampled
    last = output[-1]["prompt_token_ids"]
    known = len(output[-2]["prompt_token_ids"]) + len(output[-2]["generation_token_ids"])
    last[data.draw(st.integers(0, known - 1))] += 1
    with pytest.raises(AssertionError, match="non-contiguous"):
        log_of(rollout(*output))
