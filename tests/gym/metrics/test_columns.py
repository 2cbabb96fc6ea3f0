"""Columns give the same statistics as compute_aggregate_metrics, in little memory."""

import json
import math
import statistics
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.metrics import Columns, compute_aggregate_metrics, numeric_fields


def columns_of(rollouts: Iterable[dict[str, Any]]) -> Columns:
    columns = Columns()
    for one in rollouts:
        non_finite: list[str] = []
        numbers = numeric_fields(one, non_finite)
        columns.add(one["_ng_task_index"], one["_ng_rollout_index"], numbers, non_finite)
    return columns


def rewards(task: int, values: Iterable[float]) -> list[dict[str, Any]]:
    return [
        {"_ng_task_index": task, "_ng_rollout_index": index, "reward": value}
        for index, value in enumerate(values)
    ]


def test_worked_example_of_the_contract() -> None:
    columns = columns_of(rewards(0, [1, 0, 1, 1]) + rewards(1, [0, 0, 1, 0]))
    assert columns.statistics() == {
        "mean/reward": 0.5,
        "max/reward": 1.0,
        "min/reward": 0.0,
        "median/reward": 0.5,
        "std/reward": math.sqrt(2 / 7),
    }
    assert [group["mean/reward"] for group in columns.groups()] == [0.75, 0.25]


VALUES = (
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([None, "text", 0.0, 1.0])
)
USAGE = st.dictionaries(st.sampled_from(["input_tokens", "reward"]), VALUES)
ROLLOUTS = st.lists(
    st.fixed_dictionaries(
        {"_ng_task_index": st.sampled_from([0, 1, 2, 2**40, -3]), "_ng_rollout_index": st.integers(0, 5)},
        optional={
            "reward": VALUES,
            "solved": VALUES,
            "input_tokens": VALUES,
            "_ng_x": VALUES,
            "response": st.fixed_dictionaries({"usage": USAGE}),
        },
    ),
    min_size=1,
    max_size=15,
)


@given(ROLLOUTS)
def test_columns_agree_with_compute_aggregate_metrics(rollouts: list[dict[str, Any]]) -> None:
    columns, metrics = columns_of(rollouts), compute_aggregate_metrics(rollouts)
    assert list(columns.metrics().items()) == list(metrics.agent_metrics.items())
    assert columns.statistics().items() <= metrics.agent_metrics.items()
    assert list(columns.groups()) == metrics.group_level_metrics
    json.dumps([columns.metrics(), *columns.groups()], allow_nan=False)


@given(ROLLOUTS, st.randoms(use_true_random=False))
def test_results_do_not_depend_on_the_order_of_rollouts(rollouts: list[dict[str, Any]], random: Any) -> None:
    shuffled = random.sample(rollouts, len(rollouts))
    assert columns_of(shuffled).statistics() == columns_of(rollouts).statistics()
    assert list(columns_of(shuffled).groups()) == list(columns_of(rollouts).groups())


@given(st.lists(st.floats(-1e150, 1e150) | st.floats(1e16, 1.0001e16), min_size=2, max_size=20))
def test_statistics_are_as_exact_as_those_of_the_standard_library(values: list[float]) -> None:
    found = columns_of(rewards(0, values)).statistics()
    assert found["mean/reward"] == pytest.approx(statistics.fmean(values), rel=1e-15, abs=1e-300)
    assert found["median/reward"] == statistics.median(values)
    assert found["std/reward"] == pytest.approx(statistics.stdev(values), rel=1e-12, abs=1e-300)


def test_earlier_rollouts_miss_a_field_that_appears_late() -> None:
    columns = Columns()
    columns.add(0, 0, {"reward": 1.0})
    columns.add(1, 0, {"reward": 0.0, "late": 4.0})
    columns.add(1, 1, {"late": 6.0})
    assert columns.names == ["reward", "late"]
    assert len(columns) == 3
    assert (columns.mean("reward"), columns.mean("late"), columns.mean("never")) == (0.5, 5.0, None)
    first, second = columns.groups()
    assert "mean/late" not in first
    assert (second["mean/reward"], second["mean/late"]) == (0.0, 5.0)


def test_without_rollouts_there_are_no_statistics() -> None:
    assert (Columns().statistics(), list(Columns().groups()), len(Columns())) == ({}, [], 0)


def test_mean_too_large_for_a_float_is_none() -> None:
    columns = columns_of(rewards(0, [1.7e308, 1.7e308]))
    assert columns.mean("reward") is None


def test_groups_are_in_the_order_of_task_indices() -> None:
    columns = columns_of(rewards(10**12, [1]) + rewards(3, [0]) + rewards(10**12, [0]) + rewards(0, [1]))
    assert [group["_ng_task_index"] for group in columns.groups()] == [0, 3, 10**12]


def test_memory_is_that_of_the_numbers() -> None:
    count, fields = 20_000, {"reward": 0.25, "input_tokens": 3.0}
    tracemalloc.start()
    try:
        columns = Columns()
        for place in range(count):
            columns.add(count - place, 0, fields)
        kept = tracemalloc.get_traced_memory()[0]
        assert kept < count * 8 * 4 * 1.3  # two numbers, two indices; arrays grow by an eighth
        tracemalloc.reset_peak()
        columns.statistics()
        assert sum(1 for _ in columns.groups()) == count
        assert tracemalloc.get_traced_memory()[1] - kept < count * 56
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("hiding", ["text", None, math.nan, 10**400])
def test_field_of_the_rollout_replaces_token_usage_of_the_same_name(hiding: Any) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4}
    assert numeric_fields({"response": {"usage": usage}, "input_tokens": hiding}) == {"output_tokens": 4.0}
    assert numeric_fields({"response": {"usage": usage}, "input_tokens": 5})["input_tokens"] == 5.0


def test_interval_of_tokens_is_not_negative_and_that_of_rewards_is_within_0_and_1() -> None:
    rollouts = [
        {
            "_ng_task_index": task,
            "_ng_rollout_index": 0,
            "reward": reward,
            "output_tokens": tokens,
            "gain": gain,
        }
        for task, (reward, tokens, gain) in enumerate([(0.9, 3, -1.0), (1.0, 5, 0.0), (0.3, 900, 90.0)])
    ]
    metrics = columns_of(rollouts).metrics()
    assert metrics["mean/output_tokens/ci95_low"] == 0.0
    assert metrics["mean/reward/ci95_high"] == 1.0
    assert metrics["mean/gain/ci95_low"] < -1.0
