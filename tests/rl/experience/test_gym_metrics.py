"""Metrics of groups on the Gym path."""

import json
import math
from typing import Any

import pytest
import torch

from nemo_rl.experience.gym_metrics import gym_metrics
from nemo_rl.experience.interfaces import Completion

pytestmark = pytest.mark.torch


def completion(env_extras: Any, *turns: tuple[int, int], **fields: Any) -> Completion:
    """A completion with these numbers of tokens read and sampled per turn."""
    log: list[dict[str, Any]] = []
    for read, sampled in turns or ((2, 1),):
        log.append({"role": "user", "content": "", "token_ids": torch.ones(read, dtype=torch.int64)})
        log.append({"role": "assistant", "content": "", "token_ids": torch.ones(sampled, dtype=torch.int64)})
    settings: dict[str, Any] = {"truncated": False, "reward": 0.0, **fields}
    return Completion(log, env_extras, **settings)


def test_environment_metrics_are_the_numbers_of_the_first_result() -> None:
    first = {"reward": 1, "solved": True, "steps": 4, "note": "x"}
    metrics = gym_metrics([completion(first), completion({"reward": 0, "solved": False, "extra": 9})], "calc")
    assert metrics["calc/solved/mean"] == 0.5
    assert (metrics["calc/steps/mean"], metrics["calc/steps/median"]) == (2.0, 4.0)
    assert math.isnan(metrics["calc/steps/stddev"])
    assert (metrics["calc/reward/count"], metrics["calc/steps/count"]) == (2, 1)
    assert not [key for key in metrics if key.startswith(("calc/note", "calc/extra"))]


def test_results_become_a_table_of_compact_json() -> None:
    first = {"reward": 1, "solved": True, "steps": 4, "note": "x"}
    table = gym_metrics([completion(first), completion({"reward": 0})], "calc")["calc/full_result"]
    assert table == {
        "columns": ["Full result"],
        "data": [['{"reward":1,"solved":true,"steps":4,"note":"x"}'], ['{"reward":0}']],
    }


def test_tokens_and_turns_are_counted_by_message() -> None:
    members = [completion({}, (3, 2), (1, 5)), completion({}, (3, 4), truncated=True)]
    metrics = gym_metrics(members, "calc")
    assert metrics["turns_per_sample/histogram"] == {"values": [2, 1]}
    assert metrics["total_tokens_per_sample/histogram"] == {"values": [11, 7]}
    assert metrics["gen_tokens_per_sample/histogram"] == {"values": [7, 4]}
    assert metrics["max_gen_tokens_per_turn/histogram"] == {"values": [5, 4]}
    assert (metrics["max_gen_tokens_per_turn/stddev"], metrics["max_gen_tokens_per_turn/p95"]) == (
        pytest.approx(math.sqrt(0.5)),
        5.0,
    )
    assert (metrics["turns_per_sample/p95"], metrics["turns_per_sample/p99"]) == (2.0, 2.0)
    assert (metrics["truncation_rate"], metrics["natural_termination_rate"]) == (0.5, 0.5)


def test_group_metrics_have_exactly_the_published_and_the_added_keys() -> None:
    metrics = gym_metrics([completion({"reward": 1, "note": "x"})], "calc")
    six = ("mean", "max", "min", "median", "stddev", "histogram")
    keyed = ("total_reward", "turns_per_sample", "total_tokens_per_sample", "gen_tokens_per_sample")
    keyed += ("max_gen_tokens_per_turn", "calc/reward")
    published = {f"{key}/{kind}" for key in keyed for kind in six}
    published |= {"turns_per_sample/p95", "turns_per_sample/p99", "max_gen_tokens_per_turn/p95"}
    published |= {"truncation_rate", "natural_termination_rate", "mean_gen_tokens_per_sample"}
    published |= {"calc/full_result"}
    added = {f"sequence_tokens_per_sample/{kind}" for kind in six} | {"calc/reward/count"}
    assert set(metrics) == published | added


def test_failed_members_are_not_counted() -> None:
    failed = completion(None, (2, 0), reward=0.0, failure="GymTransportError: gone")
    metrics = gym_metrics([failed, completion({"reward": 1}, reward=1.0)], "calc")
    assert metrics["total_reward/mean"] == metrics["calc/reward/mean"] == 1.0
    assert metrics["turns_per_sample/histogram"] == {"values": [1]}
    assert len(metrics["calc/full_result"]["data"]) == 1


def test_metrics_are_plain_data() -> None:
    metrics = gym_metrics([completion({"reward": 1, "odd": float("inf")})], "calc")
    assert json.loads(json.dumps(metrics)).keys() == metrics.keys()
