"""A recorded rollout is split into its model calls."""

from typing import Any

import pytest

from nemo_gym.openai_utils import add_usage
from responses_api_models.replay_model.tests.rollouts import (
    USAGE,
    called,
    recorded,
    said,
    thought,
    tokens,
    tool_output,
    user,
)
from responses_api_models.replay_model.turns import rollout_from, split_calls

A, B = called("a", "call_1", x=1), called("b", "call_2")
SEARCH = {"type": "web_search_call", "id": "ws"}


@pytest.mark.parametrize(
    ("output", "calls"),
    [
        ([], [[]]),
        ([said("hi")], [[said("hi")]]),
        ([thought("hm"), A, tool_output("1"), said("hi")], [[thought("hm"), A], [said("hi")]]),
        ([A, B, tool_output("1", "call_1"), tool_output("2", "call_2"), said("hi")], [[A, B], [said("hi")]]),
        ([A, tool_output("1", "call_1"), B, tool_output("2", "call_2")], [[A], [B]]),
        ([said("hi"), user("go on"), said("so")], [[said("hi")], [said("so")]]),
        ([user("hello"), said("hi")], [[said("hi")]]),
        (
            [said("hi", **tokens(3, 2)), thought("hm"), said("so", **tokens(5, 2))],
            [[said("hi", **tokens(3, 2))], [thought("hm"), said("so", **tokens(5, 2))]],
        ),
        ([SEARCH, said("hi")], [[SEARCH, said("hi")]]),
    ],
)
def test_tool_outputs_user_messages_and_token_ids_end_a_call(output: list[Any], calls: list[Any]) -> None:
    assert split_calls(output) == calls


def summed(usages: list[Any]) -> dict[str, Any] | None:
    total = None
    for usage in usages:
        total = add_usage(total, usage)
    return total


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_usages_of_the_calls_add_up_to_the_recorded_one(count: int) -> None:
    output = [item for turn in range(count) for item in (called("a", turn=turn), tool_output("1"))]
    rollout = rollout_from(recorded("x", *output, said("bye")))
    assert len(rollout.usages) == count + 1
    assert summed(rollout.usages) == USAGE
    for usage in rollout.usages:
        assert usage is not None
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    reads = [usage["input_tokens"] for usage in rollout.usages if usage is not None]
    assert reads == sorted(reads)  # the prompts of a conversation grow


def test_usage_of_each_call_follows_its_token_ids() -> None:
    output = [called("a") | tokens(20, 8), tool_output("1"), said("bye", **tokens(40, 4))]
    usage = {"input_tokens": 60, "output_tokens": 12, "total_tokens": 72}
    rollout = rollout_from(recorded("x", *output, usage=usage))
    assert rollout.usages == [
        {"input_tokens": 20, "output_tokens": 8, "total_tokens": 28},
        {"input_tokens": 40, "output_tokens": 4, "total_tokens": 44},
    ]


def test_unusual_or_missing_usage_is_accepted() -> None:
    output = (A, tool_output("1"), said("bye"))
    assert rollout_from(recorded("x", *output, usage=None)).usages == [None, None]
    odd = {
        "input_tokens": 3,
        "output_tokens": None,
        "cost": 0.5,
        "tier": "flex",
        "input_tokens_details": None,
    }
    usages = rollout_from(recorded("x", *output, usage=odd)).usages
    first, second = usages
    assert first is not None and second is not None
    assert first["input_tokens"] + second["input_tokens"] == 3
    assert first["cost"] + second["cost"] == pytest.approx(0.5)
    assert (first["tier"], second["output_tokens"], second["input_tokens_details"]) == ("flex", None, None)


def test_only_the_last_call_is_incomplete() -> None:
    details = {"reason": "max_output_tokens"}
    record = recorded(
        "x", A, tool_output("1"), said("b"), status="incomplete", incomplete_details=details, vendor=1
    )
    rollout = rollout_from(record)
    first, last = rollout.response_of(0), rollout.response_of(1)
    assert (first["status"], first["incomplete_details"], first["vendor"]) == ("completed", None, 1)
    assert (last["status"], last["incomplete_details"], last["id"]) == ("incomplete", details, "resp_1")
    assert (first["output"], last["output"]) == ([A], [said("b")])
    assert first["id"] != last["id"]
