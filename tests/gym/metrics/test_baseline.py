import json
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.config_types import AggregateMetrics
from nemo_gym.errors import InputError
from nemo_gym.metrics import compute_aggregate_metrics, default_key_metrics
from nemo_gym.metrics.uncertainty import estimate_mean


def rollout(task: int, reward: Any = None, index: int = 0, **more: Any) -> dict[str, Any]:
    row = {"_ng_task_index": task, "_ng_rollout_index": index, **more}
    return row if reward is None else {**row, "reward": reward}


EXAMPLE = [rollout(0, reward, index) for index, reward in enumerate([1, 0, 1, 1])] + [
    rollout(1, reward, index) for index, reward in enumerate([0, 0, 1, 0])
]


def test_worked_example_of_the_contract() -> None:
    metrics = compute_aggregate_metrics(EXAMPLE)
    sure = {
        "mean/reward/std_err": 0.25,
        "mean/reward/ci95_low": 0.0,
        "mean/reward/ci95_high": 1.0,
    }
    assert metrics.agent_metrics == {
        "mean/reward": 0.5,
        **sure,
        "max/reward": 1.0,
        "min/reward": 0.0,
        "median/reward": 0.5,
        "std/reward": pytest.approx(0.5345224838, abs=1e-10),
    }
    assert [group["mean/reward"] for group in metrics.group_level_metrics] == [0.75, 0.25]
    assert [group["_ng_task_index"] for group in metrics.group_level_metrics] == [0, 1]
    assert metrics.key_metrics == {"mean/reward": 0.5, **sure}


def test_without_rollouts_metrics_are_empty_and_no_hook_is_called() -> None:
    def never(*_: Any) -> dict[str, Any]:
        raise AssertionError

    assert compute_aggregate_metrics([], never, never) == AggregateMetrics()


def test_missing_value_is_left_out_instead_of_counted_as_zero() -> None:
    rollouts = [rollout(0, 1.0), rollout(0), rollout(1, 0.5, accuracy=3), rollout(2)]
    metrics = compute_aggregate_metrics(rollouts)
    assert (metrics.agent_metrics["mean/reward"], metrics.agent_metrics["mean/accuracy"]) == (0.75, 3.0)
    assert "mean/accuracy" not in metrics.group_level_metrics[0]
    assert metrics.group_level_metrics[2] == {"_ng_task_index": 2}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None, "1.0", [1], {"a": 1}])
def test_value_that_is_not_a_finite_number_is_left_out(odd: Any) -> None:
    metrics = compute_aggregate_metrics([rollout(0, 1.0), {**rollout(0), "reward": odd}])
    assert metrics.agent_metrics["mean/reward"] == 1.0
    assert metrics.agent_metrics["std/reward"] == 0.0
    json.dumps(metrics.model_dump(), allow_nan=False)


def test_field_that_is_never_a_finite_number_has_no_statistics() -> None:
    metrics = compute_aggregate_metrics([rollout(0, math.nan, text="x")])
    assert metrics.agent_metrics == {"non_finite/reward": 1}


@pytest.mark.parametrize("huge", [10**400, -(10**400), 2**1024], ids=["large", "small", "just too large"])
def test_integer_too_large_for_a_float_is_left_out(huge: int) -> None:
    metrics = compute_aggregate_metrics([rollout(0, 1.0, answer=huge), rollout(0, 0.0, answer=2)])
    assert (metrics.agent_metrics["mean/reward"], metrics.agent_metrics["max/answer"]) == (0.5, 2.0)


def test_very_large_numbers_give_neither_infinity_nor_an_error() -> None:
    largest = 1.7e308
    metrics = compute_aggregate_metrics([rollout(0, largest), rollout(0, largest), rollout(0, -largest)])
    json.dumps(metrics.model_dump(), allow_nan=False)
    assert metrics.agent_metrics["max/reward"] == largest


def test_bool_counts_as_zero_or_one() -> None:
    rollouts = [rollout(0, solved=flag) for flag in (True, False, True, True)]
    metrics = compute_aggregate_metrics(rollouts).agent_metrics
    assert (metrics["mean/solved"], metrics["max/solved"], metrics["median/solved"]) == (0.75, 1.0, 1.0)


def test_token_usage_has_statistics() -> None:
    rollouts = [
        rollout(
            0, 1, response={"output": [], "usage": {"input_tokens": n, "output_tokens": 1, "details": {}}}
        )
        for n in (10, 30)
    ]
    metrics = compute_aggregate_metrics(rollouts).agent_metrics
    assert (metrics["mean/input_tokens"], metrics["mean/output_tokens"]) == (20.0, 1.0)
    assert "mean/details" not in metrics


@pytest.mark.parametrize("response", [None, {}, {"usage": None}, "text", {"usage": {"input_tokens": None}}])
def test_response_without_usage_is_accepted(response: Any) -> None:
    metrics = compute_aggregate_metrics([rollout(0, 1, response=response)])
    assert metrics.agent_metrics["mean/reward"] == 1.0


def test_keys_of_the_collector_have_no_statistics() -> None:
    metrics = compute_aggregate_metrics([rollout(3, 1, index=2, _ng_anything=5)])
    assert {name.partition("/")[2] for name in metrics.agent_metrics} == {"reward"}


def test_rollouts_without_a_task_index_belong_to_one_task() -> None:
    metrics = compute_aggregate_metrics([{"reward": 1}, {"reward": 0}])
    assert [group["mean/reward"] for group in metrics.group_level_metrics] == [0.5]


def test_hook_gets_tasks_and_their_rollouts_in_index_order() -> None:
    seen: list[Any] = []

    def hook(tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        seen.extend([[one["name"] for one in task] for task in tasks])
        return {}

    shuffled = [
        rollout(10, index=1, name="10:1"),
        rollout(2, index=1, name="2:1"),
        rollout(10, index=0, name="10:0"),
        rollout(2, index=0, name="2:0"),
    ]
    compute_aggregate_metrics(shuffled, hook)
    assert seen == [["2:0", "2:1"], ["10:0", "10:1"]]
    assert [one["name"] for one in shuffled] == ["10:1", "2:1", "10:0", "2:0"]


def test_metrics_of_the_environment_follow_and_may_replace_others() -> None:
    metrics = compute_aggregate_metrics(EXAMPLE, lambda tasks: {"own": 1, "mean/reward": -1.0})
    assert (metrics.agent_metrics["own"], metrics.agent_metrics["mean/reward"]) == (1, -1.0)
    assert metrics.key_metrics == {"mean/reward": -1.0}
    assert metrics.group_level_metrics[0]["mean/reward"] == 0.75


def test_per_task_metrics_are_merged_into_the_groups() -> None:
    def hook(tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        per_task = [{"_ng_task_index": 1, "best": 1}, {"_ng_task_index": 7, "best": 0}]
        return {"own": 2, "per_task_metrics": per_task}

    metrics = compute_aggregate_metrics(EXAMPLE, hook)
    assert "per_task_metrics" not in metrics.agent_metrics
    assert metrics.agent_metrics["own"] == 2
    first, second, third = metrics.group_level_metrics
    assert "best" not in first
    assert (second["best"], second["mean/reward"]) == (1, 0.25)
    assert third == {"_ng_task_index": 7, "best": 0}


def test_result_of_the_hook_is_not_modified() -> None:
    given = {"own": 1, "per_task_metrics": [{"_ng_task_index": 0, "best": 1}]}
    compute_aggregate_metrics(EXAMPLE, lambda tasks: given)
    assert given == {"own": 1, "per_task_metrics": [{"_ng_task_index": 0, "best": 1}]}


def test_hook_without_per_task_metrics_is_accepted() -> None:
    metrics = compute_aggregate_metrics(EXAMPLE, lambda tasks: {"per_task_metrics": None})
    assert len(metrics.group_level_metrics) == 2


def test_hook_selects_the_key_metrics() -> None:
    metrics = compute_aggregate_metrics(
        EXAMPLE,
        lambda tasks: {"own": 3},
        lambda metrics: {"it": metrics["own"], "std": metrics["std/reward"]},
    )
    assert metrics.key_metrics == {"it": 3, "std": metrics.agent_metrics["std/reward"]}


def test_default_key_metrics_are_the_means() -> None:
    assert default_key_metrics({"mean/a": 1, "max/a": 2, "meaning": 3}) == {"mean/a": 1}


NUMBERS = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9)
VALUES = st.none() | NUMBERS | st.sampled_from([math.nan, math.inf, "text", [1]])
ROLLOUTS = st.lists(
    st.fixed_dictionaries(
        {"_ng_task_index": st.integers(0, 3)},
        optional={"reward": VALUES, "solved": VALUES, "input_tokens": VALUES, "_ng_x": VALUES},
    ),
    max_size=12,
)


def slow_statistics(rollouts: list[dict[str, Any]], of_agent: bool = False) -> dict[str, float]:
    """A direct implementation of the definitions."""
    columns: dict[str, list[float]] = defaultdict(list)
    tasks: dict[str, list[int]] = defaultdict(list)
    odd: dict[str, float] = defaultdict(float)
    for one in rollouts:
        for name, value in one.items():
            if type(value) in (bool, int, float) and not name.startswith("_ng_"):
                number = float(value)
                if number - number == 0:
                    columns[name].append(number)
                    tasks[name].append(one["_ng_task_index"])
                else:
                    odd[f"non_finite/{name}"] += 1
    result: dict[str, float] = {}
    for name, values in columns.items():
        n = len(values)
        mean = math.fsum(values) / n
        ordered = sorted(values)
        middle = ordered[(n - 1) // 2 : n // 2 + 1]
        squares = math.fsum((value - mean) ** 2 for value in values)
        result[f"mean/{name}"] = mean
        result[f"max/{name}"] = ordered[-1]
        result[f"min/{name}"] = ordered[0]
        result[f"median/{name}"] = sum(middle) / len(middle)
        result[f"std/{name}"] = math.sqrt(squares / (n - 1)) if n > 1 else 0.0
        if of_agent and len({*tasks[name]}) > 1:
            result |= slow_uncertainty(f"mean/{name}", values, tasks[name], mean)
    return {**result, **odd} if of_agent else result


def slow_uncertainty(name: str, values: list[float], tasks: list[int], mean: float) -> dict[str, float]:
    """A direct implementation of the error clustered by task and of the interval around the mean."""
    groups = len({*tasks})
    totals = [
        math.fsum(value - mean for value, task in zip(values, tasks, strict=True) if task == group)
        for group in {*tasks}
    ]
    error = math.sqrt(math.fsum(total**2 for total in totals) * groups / (groups - 1)) / len(values)
    reach = {2: 12.706204736174694, 3: 4.302652729911275, 4: 3.182446305283708}[groups] * error
    low, high = mean - reach, mean + reach
    if min(values) >= 0:  # the interval stays within the range of the values
        low, high = max(low, 0.0), min(high, 1.0) if max(values) <= 1 else high
    if {*values} <= {0.0, 1.0}:  # tested in tests/gym/metrics/test_uncertainty.py
        seen = estimate_mean(
            [sum(v for v, t in zip(values, tasks, strict=True) if t == group) for group in sorted({*tasks})],
            [tasks.count(group) for group in sorted({*tasks})],
            are_shares=True,
        )
        assert seen.low is not None and seen.high is not None
        low, high = seen.low, seen.high
    return {f"{name}/std_err": error, f"{name}/ci95_low": low, f"{name}/ci95_high": high}


@given(ROLLOUTS)
def test_statistics_agree_with_their_definitions(rollouts: list[dict[str, Any]]) -> None:
    metrics = compute_aggregate_metrics(rollouts)
    assert metrics.agent_metrics == pytest.approx(slow_statistics(rollouts, True), rel=1e-7, abs=1e-6)
    groups = {group.pop("_ng_task_index"): group for group in metrics.group_level_metrics}
    assert list(groups) == sorted({one["_ng_task_index"] for one in rollouts})
    for task, group in groups.items():
        members = [one for one in rollouts if one["_ng_task_index"] == task]
        assert group == pytest.approx(slow_statistics(members), rel=1e-9, abs=1e-6)


def test_numpy_values_of_a_hook_become_python_numbers() -> None:
    def own(tasks: Any) -> dict[str, Any]:
        per_task = [{"_ng_task_index": 0, "best": np.float32(0.5)}]
        found = {"count": np.int64(3), "is_good": np.bool_(True), "all": np.array([1, 2]), "odd": np.nan}
        return {**found, "per_task_metrics": per_task}

    metrics = compute_aggregate_metrics(EXAMPLE, own, lambda found: {"count": found["count"], "x": np.inf})
    found = metrics.agent_metrics
    assert (found["count"], found["is_good"], found["all"], found["odd"]) == (3, True, [1, 2], None)
    assert metrics.group_level_metrics[0]["best"] == 0.5
    assert metrics.key_metrics == {"count": 3, "x": None}
    json.dumps(metrics.model_dump(), allow_nan=False)


@pytest.mark.parametrize("index", ["0", 1.0, 2**63, [1]])
def test_index_that_is_not_a_whole_number_is_an_error(index: Any) -> None:
    with pytest.raises(InputError, match=r"rollout 1 \(counted from 0\): _ng_task_index is "):
        compute_aggregate_metrics([rollout(0, 1.0), rollout(index, 1.0)])


def test_index_none_counts_as_missing() -> None:
    none: Any = None
    seen: list[Any] = []
    compute_aggregate_metrics([rollout(none, 1.0), rollout(0, 0.0)], lambda tasks: seen.extend(tasks) or {})
    assert [len(task) for task in seen] == [2]
