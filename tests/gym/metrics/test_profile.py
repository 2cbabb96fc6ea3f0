"""Reward profiles agree with a direct implementation of their definition."""

import json
import math
import statistics
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import InputError
from nemo_gym.metrics.profile import RewardProfileConfig, RewardProfiler, profile_completion_summary

Record = dict[str, Any]


def row(task: int, rollout: int, **fields: Any) -> Record:
    return {
        "question": f"q{task}",
        "agent_ref": {"name": "adder"},
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        **fields,
    }


def result(task: int, rollout: int, reward: Any = 1.0, **fields: Any) -> Record:
    key = {"_ng_task_index": task, "_ng_rollout_index": rollout}
    return {"reward": reward, "agent_ref": {"name": "adder"}, **key, **fields}


def both(rewards: dict[int, list[float]]) -> tuple[list[Record], list[Record]]:
    keys = [(task, rollout) for task, values in rewards.items() for rollout in range(len(values))]
    return [row(*key) for key in keys], [result(*key, rewards[key[0]][key[1]]) for key in keys]


def profile(rows: list[Record], results: list[Record], partial: bool = False) -> tuple[Any, Any]:
    return RewardProfiler().profile_from_data(rows, results, allow_partial_rollouts=partial)


def test_worked_example_of_the_contract() -> None:
    groups, agents = profile(*both({0: [1, 0, 1, 1], 1: [0, 0, 1, 0]}))
    assert [agent["agent_ref"] for agent in agents] == [{"name": "adder"}]
    assert agents[0]["mean/reward"] == agents[0]["median/reward"] == 0.5
    assert agents[0]["std/reward"] == pytest.approx(0.5345224838)
    assert 0 <= agents[0]["mean/reward/ci95_low"] < 0.5 < agents[0]["mean/reward/ci95_high"] <= 1
    assert [group["mean/reward"] for group in groups] == [0.75, 0.25]
    assert groups[1] == {
        "_ng_task_index": 1,
        "mean/reward": 0.25,
        "max/reward": 1.0,
        "min/reward": 0.0,
        "median/reward": 0.0,
        "std/reward": 0.5,
        "sample": {"question": "q1", "agent_ref": {"name": "adder"}},
        "num_rollouts": 4,
        "expected_num_rollouts": 4,
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": [
            {"rollout_id": f"1:{index}", "_ng_task_index": 1, "_ng_rollout_index": index, "reward": reward}
            for index, reward in enumerate([0, 0, 1, 0])
        ],
    }


def test_profile_of_no_rows_is_empty() -> None:
    assert profile([], []) == ([], [])
    assert profile([row(0, 0)], [], partial=True) == ([], [])
    assert set(profile_completion_summary([], []).values()) == {0}


def test_groups_are_ordered_by_key_and_agents_by_their_first_rows() -> None:
    rows = [
        row(7, 1, agent_ref={"name": "late"}, seed=1),
        row(2, 0),
        row(7, 0, agent_ref={"name": "late"}, seed=0),
    ]
    results = [
        result(2, 0),
        result(7, 1, agent_ref={"name": "late"}),
        result(7, 0, agent_ref={"name": "late"}),
    ]
    groups, agents = profile(rows, results)
    assert [group["_ng_task_index"] for group in groups] == [2, 7]
    assert [info["rollout_id"] for info in groups[1]["rollout_infos"]] == ["7:0", "7:1"]
    assert groups[1]["sample"] == {"question": "q7", "agent_ref": {"name": "late"}, "seed": 0}
    assert [agent["agent_ref"]["name"] for agent in agents] == ["late", "adder"]
    assert "_ng_task_index" in rows[0], "what was given is not changed"


def test_rollout_infos_list_the_reward_first_then_every_finite_number() -> None:
    given = result(
        0,
        0,
        solved=True,
        steps=3,
        odd=math.nan,
        text="x",
        nothing=None,
        rollout_id=5,
        response={"usage": {"input_tokens": 12, "output_tokens_details": {"reasoning_tokens": 1}}},
        _ng_attempt_index=1,
    )
    groups, agents = profile([row(0, 0), row(0, 1)], [given, result(0, 1, math.inf)])
    first, second = groups[0]["rollout_infos"]
    assert list(first.items())[:4] == [
        ("rollout_id", "0:0"),
        ("_ng_task_index", 0),
        ("_ng_rollout_index", 0),
        ("reward", 1.0),
    ]
    assert {name: first[name] for name in list(first)[4:]} == {"input_tokens": 12, "solved": 1, "steps": 3}
    assert list(second) == ["rollout_id", "_ng_task_index", "_ng_rollout_index"]
    assert groups[0]["mean/reward"] == 1.0
    assert (agents[0]["non_finite/reward"], agents[0]["non_finite/odd"]) == (1, 1)
    json.dumps([groups, agents], allow_nan=False)


def test_rollouts_without_numbers_are_profiled() -> None:
    groups, agents = profile([row(0, 0)], [result(0, 0, None)])
    assert groups[0]["rollout_infos"] == [{"rollout_id": "0:0", "_ng_task_index": 0, "_ng_rollout_index": 0}]
    assert agents == [{"agent_ref": {"name": "adder"}}]


def test_partial_tasks_report_their_completion() -> None:
    rows = [row(task, rollout) for task in range(3) for rollout in range(4)]
    results = [result(0, rollout) for rollout in range(4)] + [result(1, 3)]
    groups, _ = profile(rows, results, partial=True)
    names = ("num_rollouts", "expected_num_rollouts", "missing_num_rollouts", "reward_profile_completion_pct")
    assert [[group[name] for name in names] for group in groups] == [[4, 4, 0, 100.0], [1, 4, 3, 25.0]]
    assert profile_completion_summary(rows, [*results, result(9, 9)]) == {
        "expected_rollouts": 12,
        "completed_rollouts": 5,
        "missing_rollouts": 7,
        "extra_rollouts": 1,
        "expected_tasks": 3,
        "complete_tasks": 1,
        "partial_tasks": 1,
        "missing_tasks": 1,
    }


@pytest.mark.parametrize(
    ("rows", "results", "expected"),
    [
        ([row(0, 0)], [result(0, 0), result(1, 2)], ["1 rollout with a result but no row: 1:2;"]),
        ([row(0, 0), row(0, 3)], [result(0, 0)], ["1 rollout with a row but no result: 0:3;", "=True"]),
        ([row(0, 0)] * 2, [result(0, 0)], ["1 rollout with more than one row: 0:0;"]),
        ([row(0, 0)], [result(0, 0)] * 3, ["1 rollout with more than one result: 0:0;"]),
        ([row(0, 0)], [result(0, 0, agent_ref={"name": "b"})], ["1 rollout by an agent other", ": 0:0;"]),
        (
            [row(5, 0, agent_ref=None), row(5, 1, agent_ref=None)],
            [result(5, 1, agent_ref={"name": "b"}), result(5, 0)],
            ["an agent other than their task's: 5:1;"],
        ),
        ([{"question": 1}], [], ["row 0 (counted from 0) has no valid key", "got none and none"]),
        ([row(0, 0)], [result(0, 0), result(True, 0)], ["result 1 (counted from 0) has no", "True and 0"]),
        ([row(-1, 0)], [], ["row 0 (counted from 0) has no valid key", "got -1 and 0"]),
    ],
)
def test_rows_and_results_that_do_not_match_are_an_error_with_their_keys(
    rows: list[Record], results: list[Record], expected: list[str]
) -> None:
    with pytest.raises(ValueError) as refused:
        profile(rows, results)
    assert isinstance(refused.value, InputError)
    assert all(text in str(refused.value) for text in expected), refused.value


@pytest.mark.parametrize("kind", ["extra", "missing", "rows twice", "results twice"])
def test_error_lists_the_first_ten_keys(kind: str) -> None:
    keys = [(task, 0) for task in range(25)]
    rows, results = [row(*key) for key in keys], [result(*key) for key in reversed(keys)]
    given = {
        "extra": ([], results),
        "missing": (rows, []),
        "rows twice": (rows * 2, results),
        "results twice": (rows, results * 2),
    }[kind]
    with pytest.raises(InputError, match="25 rollouts") as refused:
        profile(*given)
    assert ": 0:0, 1:0, 2:0, 3:0, 4:0, 5:0, 6:0, 7:0, 8:0, 9:0 and 15 more;" in str(refused.value)


def test_agent_comes_from_the_rows_or_else_from_the_results() -> None:
    rows = [row(0, 0), row(1, 0, agent_ref={}), row(1, 1, agent_ref=None), row(2, 0, agent_ref="x")]
    results = [
        result(0, 0, agent_ref=None),
        result(1, 0, agent_ref=None),
        result(1, 1, agent_ref={"name": "b"}),
        result(2, 0, agent_ref=None),
    ]
    groups, agents = profile(rows, results)
    assert [agent["agent_ref"] for agent in agents] == [{"name": "adder"}, {"name": "b"}, {}]
    assert [group["num_rollouts"] for group in groups] == [1, 2, 1]


def test_config_has_the_published_fields_and_defaults() -> None:
    config = RewardProfileConfig.model_validate(
        {"materialized_inputs_jsonl_fpath": "m", "rollouts_jsonl_fpath": "r", "policy_model_name": "x"}
    )
    assert config.allow_partial_rollouts is False
    assert all(field.description for field in RewardProfileConfig.model_fields.values())


VALUES = st.booleans() | st.integers(-9, 9) | st.floats() | st.sampled_from([None, "text", 0.0, 1.0])
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "reward": VALUES,
        "solved": VALUES,
        "response": st.fixed_dictionaries({"usage": st.dictionaries(st.sampled_from(["tokens"]), VALUES)}),
    },
)
KEYS = st.tuples(st.sampled_from([0, 1, 2, 50, 2**31 - 1]), st.integers(0, 4))
ASKED = st.lists(KEYS, unique=True, max_size=15)


@given(ASKED, st.data())
def test_profiles_agree_with_a_slow_implementation(asked: list[tuple[int, int]], data: st.DataObject) -> None:
    rows = [row(*key, n=place) for place, key in enumerate(asked)]
    done = data.draw(st.permutations(asked))[: data.draw(st.integers(0, len(asked)))]
    results = [row(*key) | {"agent_ref": {"name": agent_of(key[0])}, **data.draw(FIELDS)} for key in done]
    for one in rows:
        one["agent_ref"] = {"name": agent_of(one["_ng_task_index"])}
    groups, agents = profile(rows, results, partial=True)
    assert_same(groups, slow_groups(rows, results))
    assert {agent["agent_ref"]["name"] for agent in agents} == {agent_of(task) for task, _ in done}
    for agent in agents:
        own = [one for one in results if agent_of(one["_ng_task_index"]) == agent["agent_ref"]["name"]]
        assert_same([{name: agent.get(name) for name in slow_statistics(own)}], [slow_statistics(own)])
    json.dumps([groups, agents], allow_nan=False)


def agent_of(task: int) -> str:
    return "even" if task % 2 == 0 else "odd"


def slow_groups(rows: list[Record], results: list[Record]) -> list[Record]:
    rows_of, results_of = defaultdict(list), defaultdict(list)
    for one in sorted(rows, key=key):
        rows_of[one["_ng_task_index"]].append(one)
    for one in sorted(results, key=key):
        results_of[one["_ng_task_index"]].append(one)
    groups = []
    for task, own in sorted(results_of.items()):
        wanted = rows_of[task]
        infos = [
            {"rollout_id": "{}:{}".format(*key(one)), **key_fields(one), **slow_numbers(one)} for one in own
        ]
        groups.append(
            {
                "_ng_task_index": task,
                **slow_statistics(own),
                "sample": {name: value for name, value in wanted[0].items() if not name.startswith("_ng")},
                "num_rollouts": len(own),
                "expected_num_rollouts": len(wanted),
                "missing_num_rollouts": len(wanted) - len(own),
                "reward_profile_completion_pct": 100 * len(own) / len(wanted),
                "rollout_infos": infos,
            }
        )
    return groups


def key(one: Record) -> tuple[int, int]:
    return one["_ng_task_index"], one["_ng_rollout_index"]


def key_fields(one: Record) -> Record:
    return {name: one[name] for name in ("_ng_task_index", "_ng_rollout_index")}


def slow_numbers(one: Record) -> dict[str, float]:
    fields = dict(one.get("response", {}).get("usage", {})) | one
    return {
        name: float(value)
        for name, value in fields.items()
        if isinstance(value, int | float) and math.isfinite(value) and not name.startswith("_ng_")
    }


def slow_statistics(own: list[Record]) -> Record:
    found: Record = {}
    numbers = [slow_numbers(one) for one in own]
    for name in sorted({name for one in numbers for name in one}):
        values = [one[name] for one in numbers if name in one]
        if max(map(abs, values)) > 1e100:  # a statistic too large for a float is left out; see test_columns
            continue
        found |= {
            f"mean/{name}": statistics.fmean(values),
            f"max/{name}": max(values),
            f"min/{name}": min(values),
            f"median/{name}": statistics.median(values),
            f"std/{name}": statistics.stdev(values) if len(values) > 1 else 0.0,
        }
    return found


def assert_same(left: list[Record], right: list[Record]) -> None:
    """Compares numbers up to rounding; `left` may have statistics that `right` leaves out."""
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name, value in other.items():
            if isinstance(value, float):
                assert one[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
            else:
                assert one[name] == value, name
