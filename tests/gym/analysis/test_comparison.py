"""Comparison of two runs by task: figures agree with slow computations; which tasks are paired or refused."""

import json
import math
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.analysis.comparison import (
    SIGN_TEST,
    T_TEST,
    AgentComparison,
    Comparison,
    FieldComparison,
    compare_runs,
    one_line,
)
from nemo_gym.errors import InputError
from nemo_gym.records import BadLines
from tests.gym.analysis.two_runs import Numbers, Rollouts, both, records, write

WORKED_A: Rollouts = {0: [1, 0, 1, 1], 1: [0, 0, 1, 0], 2: [1, 1]}
WORKED_B: Rollouts = {0: [0, 0, 1, 0], 1: [1, 1, 1, 0], 2: [1, 1]}


def compared(a: Path, b: Path, in_a: Rollouts, in_b: Rollouts, **options: Any) -> AgentComparison:
    """The comparison of two runs with one agent."""
    (agent,) = compare_runs(write(a, records(in_a)), write(b, records(in_b)), **options).agents
    return agent


def refused(a: Path, b: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        compare_runs(a, b, **options)
    return str(caught.value)


def test_worked_example(a: Path, b: Path) -> None:
    """Task means 0.75, 0.25, 1 and 0.25, 0.75, 1: differences -0.5, +0.5, 0."""
    agent = compared(a, b, WORKED_A, WORKED_B)
    metric = agent.metric
    assert (metric.name, metric.tasks) == ("reward", 3)
    assert metric.a.mean == metric.b.mean == pytest.approx(2 / 3)
    assert (metric.a.rollouts, metric.b.rollouts, metric.a.total, metric.b.total) == (10, 10, 6, 6)
    assert metric.difference == 0
    assert metric.std_err == pytest.approx(0.5 / math.sqrt(3))  # the sample deviation of -0.5, 0.5, 0
    assert metric.ci95_low == pytest.approx(-4.302653 * 0.5 / math.sqrt(3))  # t of two degrees of freedom
    assert metric.ci95_high == pytest.approx(4.302653 * 0.5 / math.sqrt(3))
    assert (metric.p_value, metric.method, agent.verdict) == (1, T_TEST, "no_difference_shown")
    assert agent.flips.middle == 0.5
    assert (agent.flips.regression_count, agent.flips.improvement_count, agent.flips.unchanged_count) == (
        1,
        1,
        1,
    )
    assert [tuple(flip) for flip in agent.flips.regressions] == [(0, 0.75, 4, 0.25, 4, -0.5, "")]
    assert [tuple(flip) for flip in agent.flips.improvements] == [(1, 0.25, 4, 0.75, 4, 0.5, "")]
    assert (agent.costs, agent.fields) == ([], [])


def slow_p_value(t: float, freedom: int) -> float:
    """Both tails of Student's t, integrated by Simpson's rule over the angle with tangent t / √freedom."""
    steps = 4000
    front = math.gamma((freedom + 1) / 2) / (math.sqrt(math.pi) * math.gamma(freedom / 2))
    width = math.atan(abs(t) / math.sqrt(freedom)) / steps
    weights = [1, *([4, 2] * (steps // 2))[:-1], 1]
    heights = [math.cos(step * width) ** (freedom - 1) for step in range(steps + 1)]
    inside = sum(weight * height for weight, height in zip(weights, heights, strict=True)) * width / 3
    return 1 - 2 * front * inside


GROUP = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=5)
RUNS = st.lists(st.tuples(GROUP, GROUP), min_size=2, max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(RUNS)
def test_difference_and_p_value_agree_with_a_slow_computation(
    a: Path, b: Path, groups: list[tuple[list[float], list[float]]]
) -> None:
    in_a, in_b = ({task: pair[side] for task, pair in enumerate(groups)} for side in (0, 1))
    metric = compared(a, b, in_a, in_b).metric
    differences = [statistics.fmean(theirs) - statistics.fmean(ours) for ours, theirs in groups]
    assert metric.difference == pytest.approx(statistics.fmean(differences), abs=1e-12)
    assert metric.difference == pytest.approx(metric.b.mean - metric.a.mean, abs=1e-12)
    spread = statistics.stdev(differences)
    if spread < 1e-9:
        assert metric.method == SIGN_TEST
        assert metric.p_value == (2.0 ** (1 - len(groups)) if abs(differences[0]) > 1e-9 else 1.0)
        return
    t = statistics.fmean(differences) / (spread / math.sqrt(len(groups)))
    assert metric.p_value == pytest.approx(slow_p_value(t, len(groups) - 1), abs=1e-6)


def test_run_compared_with_itself_has_no_differences(a: Path) -> None:
    rng = random.Random(1)
    rollouts = {
        task: [{"reward": rng.random(), "steps": rng.randint(1, 9)} for _ in range(3)] for task in range(20)
    }
    (agent,) = compare_runs(write(a, records(rollouts)), a).agents
    for one in (agent.metric, *agent.fields):
        assert (one.difference, one.std_err, one.p_value) == (0, 0, 1)
        assert one.a == one.b
    flips = agent.flips
    assert (flips.regression_count, flips.improvement_count, flips.unchanged_count) == (0, 0, 20)
    assert agent.verdict == "no_difference_shown"


def test_every_task_counts_once_however_many_rollouts_it_has(a: Path, b: Path) -> None:
    metric = compared(a, b, {0: [1] * 9, 1: [0]}, {0: [1], 1: [0, 0, 0, 1]}).metric
    assert (metric.a.mean, metric.b.mean, metric.difference) == (0.5, 0.625, 0.125)
    assert (metric.a.rollouts, metric.b.rollouts) == (10, 5)


def test_p_value_is_below_5_percent_in_5_percent_of_equal_runs(a: Path, b: Path) -> None:
    """Each of many fields is an experiment: tasks of unequal difficulty, four noisy rollouts per task."""
    rng, fields = random.Random(7), [f"f{number}" for number in range(400)]
    difficulty = {name: [rng.random() for _ in range(30)] for name in fields}

    def run() -> Rollouts:
        return {
            task: [
                {"reward": 1, **{name: float(rng.random() < difficulty[name][task]) for name in fields}}
                for _ in range(4)
            ]
            for task in range(30)
        }

    agent = compared(a, b, run(), run())
    assert len(agent.fields) == 400
    share = sum(one.p_value is not None and one.p_value < 0.05 for one in agent.fields) / 400
    assert 0.02 < share < 0.08
    assert all(one.p_value_holm is not None and one.p_value_holm >= 0.05 for one in agent.fields)


def test_real_difference_is_significant_in_both_directions(a: Path, b: Path) -> None:
    low = {task: [0, task % 2, 0, 0] for task in range(40)}
    high = {task: [1, task % 3 > 0, 1, 0] for task in range(40)}
    assert compared(a, b, low, high).verdict == "b_higher"
    assert compared(a, b, high, low).verdict == "a_higher"


def test_one_shared_task_has_a_difference_and_no_interval(a: Path, b: Path) -> None:
    agent = compared(a, b, {0: [1, 0]}, {0: [1, 1]})
    metric = agent.metric
    assert (metric.difference, metric.tasks, agent.verdict) == (0.5, 1, "unknown")
    assert (metric.std_err, metric.ci95_low, metric.p_value, metric.method) == (None, None, None, None)


def test_equal_differences_are_compared_by_a_sign_test(a: Path, b: Path) -> None:
    """0.7 - 0.6 and 0.3 - 0.2 are not the same float."""
    metric = compared(a, b, {0: [0.6], 1: [0.2], 2: [0.1]}, {0: [0.7], 1: [0.3], 2: [0.2]}).metric
    assert (metric.method, metric.p_value) == (SIGN_TEST, 0.25)
    assert (metric.ci95_low, metric.ci95_high) == (None, None)


def test_tasks_of_one_run_only_are_counted_and_left_out(a: Path, b: Path) -> None:
    without = [{"other": 1.0}]
    agent = compared(a, b, {0: [1], 1: [0], 2: [1], 5: [1]}, {0: [1], 1: [1], 5: without, 7: [0], 8: [0]})
    assert agent.metric.tasks == 2
    assert (agent.only_in_a, agent.only_in_b, agent.without_value) == (1, 2, 1)
    assert agent.metric.difference == 0.5


def test_agents_in_both_files_are_compared_and_others_are_listed(a: Path, b: Path) -> None:
    shop, bank, odd = ({index: [reward] for index in tasks} for tasks, reward in _AGENTS)
    write(a, [*records(shop, "shop"), *records(bank, "bank"), *records(odd, "left")])
    write(b, [*records(bank, "bank"), *records(shop, "shop"), *records(odd, "right")])
    found = compare_runs(a, b)
    assert [(one.agent_a, one.agent_b, one.metric.tasks) for one in found.agents] == [
        ("bank", "bank", 3),
        ("shop", "shop", 2),
    ]
    assert (found.agents_only_in_a, found.agents_only_in_b) == (["left"], ["right"])
    only = compare_runs(a, b, agent_name="shop")
    assert [one.agent_a for one in only.agents] == ["shop"]
    assert only.agents_only_in_a == []
    assert "b.jsonl: no rollout of agent 'left'" in (message := refused(a, b, agent_name="left"))
    assert "bank, right, shop" in message


_AGENTS = [((0, 1), 1.0), ((2, 3, 4), 0.0), ((5,), 0.5)]


def test_single_agents_of_two_files_are_compared_under_any_names(a: Path, b: Path) -> None:
    found = compare_runs(write(a, records({0: [0]}, "plain")), write(b, records({0: [1]}, "with_tools")))
    assert [(one.agent_a, one.agent_b) for one in found.agents] == [("plain", "with_tools")]


def test_agent_without_shared_tasks_causes_a_warning(a: Path, b: Path) -> None:
    write(a, [*records({0: [1]}, "shop"), *records({1: [1]}, "bank")])
    write(b, [*records({0: [1]}, "shop"), *records({2: [1]}, "bank")])
    found = compare_runs(a, b)
    assert [one.agent_a for one in found.agents] == ["shop"]
    assert found.warnings == ["bank is left out: no task has reward in both runs"]


def test_runs_that_share_nothing_are_refused(a: Path, b: Path) -> None:
    write(a, records({0: [1], 1: [1]}))
    write(b, records({2: [1]}))
    message = refused(a, b)
    assert f"{a} (2 tasks of shop) and {b} (1 task of shop) have no task in common;" in message
    assert "compare runs of the same input" in message
    write(b, [*records({0: [1]}, "bank"), *records({1: [1]}, "post")])
    message = refused(a, b)
    assert "(1 task of bank, 1 task of post) have no agent in common; compare runs of the same" in message
    b.write_text("")
    assert "(no rollouts)" in refused(a, b)


def test_unknown_metric_is_an_error_that_lists_the_known_ones(a: Path, b: Path) -> None:
    write(a, records({0: [{"reward": 1, "accuracy": 1, "steps": 3}]}))
    write(b, records({0: [{"reward": 1, "steps": 3}]}))
    message = refused(a, b, metric="rewrd")
    assert message.startswith(f"{a}: no rollout has a numeric field 'rewrd'; did you mean reward?")
    assert message.endswith("+metric=<name>: accuracy, reward, steps")
    assert refused(a, b, metric="accuracy").startswith(f"{b}: no rollout has a numeric field 'accuracy'")


def test_any_numeric_field_can_be_the_metric(a: Path, b: Path) -> None:
    steps = [{task: [{"reward": 1, "steps": task + more}] for task in range(4)} for more in (0, 2)]
    agent = compared(a, b, *steps, metric="steps")
    assert (agent.metric.name, agent.metric.difference) == ("steps", 2)
    assert [one.name for one in agent.fields] == ["reward"]


def test_a_flip_of_other_values_crosses_the_middle_of_their_range(a: Path, b: Path) -> None:
    agent = compared(a, b, {0: [0], 1: [9], 2: [4], 3: [6]}, {0: [10], 1: [1], 2: [4.5], 3: [5.5]})
    assert agent.flips.middle == 5
    assert [flip.task for flip in agent.flips.improvements] == [0]
    assert [flip.task for flip in agent.flips.regressions] == [1]


def test_the_largest_flips_are_listed_and_all_are_counted(a: Path, b: Path) -> None:
    in_a: Rollouts = {0: [1, 0], 1: [1, 1], 2: [1, 1], 3: [1, 0]}
    agent = compared(a, b, in_a, {task: [0, 0] for task in range(4)}, most_flips=3)
    assert [flip.task for flip in agent.flips.regressions] == [1, 2, 0]
    assert agent.flips.regression_count == 4
    assert compared(a, b, in_a, {task: [0, 0] for task in range(4)}, most_flips=0).flips.regressions == []


def of(name: str, found: Sequence[FieldComparison]) -> FieldComparison:
    return next(one for one in found if one.name == name)


def test_tokens_and_times_are_compared(a: Path, b: Path) -> None:
    def rollout(tokens: int, seconds: float) -> Numbers:
        return {
            "reward": 1,
            "num_timeouts": 0,
            "tool_time": seconds,
            "wall_s": seconds,
            "response": {"usage": {"input_tokens": 10, "output_tokens": tokens, "total_tokens": tokens + 10}},
        }

    in_a = {0: [rollout(100, 1.0), rollout(200, 2.0)], 1: [rollout(50, 1.0)], 9: [rollout(1000, 9.0)]}
    agent = compared(a, b, in_a, {0: [rollout(160, 1.5)], 1: [rollout(70, 2.0)]})
    assert [one.name for one in agent.costs] == [
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "tool_time",
        "wall_s",
    ]
    assert [one.name for one in agent.fields] == ["num_timeouts"]
    output = of("output_tokens", agent.costs)
    assert (output.a.mean, output.b.mean, output.difference) == (100, 115, 15)
    assert (output.a.total, output.b.total) == (1350, 230)


def test_p_values_are_corrected_for_the_number_of_fields(a: Path, b: Path) -> None:
    rng = random.Random(3)

    def run(more: float) -> Rollouts:
        return {
            task: [{"reward": 1, **{name: rng.gauss(more * weight, 1) for name, weight in weights.items()}}]
            for task in range(12)
        }

    weights = {"none": 0.0, "some": 1.0, "much": 3.0}
    agent = compared(a, b, run(0), run(1))
    ordered = sorted((one.p_value or 0.0, one.p_value_holm) for one in agent.fields)
    p_values = [p_value for p_value, _ in ordered]
    expected = [3 * p_values[0], max(3 * p_values[0], 2 * p_values[1])]
    expected.append(max(expected[1], p_values[2]))
    assert [corrected for _, corrected in ordered] == pytest.approx([min(1, p) for p in expected])
    assert agent.metric.p_value_holm is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand\r\nmore ", "two lines and more"),
        ("\x1b[31mred\x1b[0m \x1b[2J\x9b1mbold", "red bold"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x08c\x7fd\x85e\u202ef\u2028g\ud800", "abcd ef g"),
        ("\x1b", ""),
        ("schön, 数学 🙂", "schön, 数学 🙂"),
    ],
)
def test_text_is_shown_as_one_line_without_control_characters(text: str, shown: str) -> None:
    assert one_line(text) == shown


@given(st.text())
def test_only_printable_characters_of_a_text_are_shown(text: str) -> None:
    assert one_line(text).isprintable()


def test_torn_line_is_an_error_or_skipped_on_request(a: Path, b: Path) -> None:
    both(a, b)
    b.write_text(b.read_text() + '{"_ng_task_index": 9, "_ng')
    assert f"{b}:9: the last line is incomplete" in refused(a, b)
    bad_lines = BadLines(are_skipped=True)
    assert compare_runs(a, b, bad_lines=bad_lines).agents[0].metric.tasks == 4
    assert bad_lines.count == 1


def numbers_of(data: Any) -> list[float]:
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        return [number for part in data for number in numbers_of(part)]
    return [data] if isinstance(data, int | float) else []


def test_non_finite_numbers_never_reach_json(a: Path, b: Path) -> None:
    huge, odd = [{"reward": 1.7e308, "loss": 1}] * 2, [{"reward": math.nan, "loss": math.inf}]
    write(a, records({0: huge, 1: [{"reward": 1, "loss": 2}, *odd]}))
    write(b, records({0: [{"reward": -1.7e308, "loss": 2}], 1: [*odd, {"reward": -1.7e308}]}))
    found = compare_runs(a, b)
    data = found.as_data()
    json.dumps(data, allow_nan=False)
    assert all(map(math.isfinite, numbers_of(data)))
    assert found.agents[0].verdict == "unknown"
    assert found.warnings == [f"{path}: 1 value of reward left out: NaN or infinite" for path in (a, b)]


def test_data_contains_the_whole_comparison(a: Path, b: Path) -> None:
    found: Comparison = compare_runs(write(a, records(WORKED_A)), write(b, records(WORKED_B)))
    data = json.loads(json.dumps(found.as_data()))
    assert (data["a_fpath"], data["b_fpath"], data["metric"]) == (str(a), str(b), "reward")
    (agent,) = data["agents"]
    assert agent["metric"]["difference"] == 0
    assert agent["flips"]["regressions"][0] == {
        "task": 0,
        "a_mean": 0.75,
        "a_rollouts": 4,
        "b_mean": 0.25,
        "b_rollouts": 4,
        "change": -0.5,
        "prompt": "",
    }
    assert data["same_tasks"]["basis"] is None


def write_many(path: Path, rollouts: int, text: str) -> None:
    """Writes rollouts, four per task, each with a text that has no numbers."""
    rng, rest = random.Random(path.name), json.dumps({"input": text})
    with path.open("w") as file:
        for number in range(rollouts):
            file.write(
                f'{{"_ng_task_index": {number // 4}, "_ng_rollout_index": {number % 4}, "reward": '
                f'{rng.randint(0, 1)}, "steps": {number % 5}, "agent_ref": {{"name": "shop"}}, '
                f'"responses_create_params": {rest}, "response": {{"usage": {{"total_tokens": 7}}}}}}\n'
            )


def test_comparison_takes_a_few_times_as_long_as_parsing(a: Path, b: Path) -> None:
    for path in (a, b):
        write_many(path, 50_000, "x" * 100)
    began = time.process_time()
    for path in (a, b):
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)
    parsed = time.process_time()
    found = compare_runs(a, b)
    compared = time.process_time()
    assert found.agents[0].metric.tasks == 12_500
    assert compared - parsed < 8 * (parsed - began)  # CPU time: about twice


def test_memory_is_that_of_the_numbers(a: Path, b: Path) -> None:
    for path in (a, b):
        write_many(path, 4_000, "x" * 4_000)
    tracemalloc.start()
    try:
        compare_runs(a, b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < a.stat().st_size / 8
