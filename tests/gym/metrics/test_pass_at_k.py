import json
import math
import random
import statistics
import time
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.pass_at_k import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
    pass_at_k,
)

STATISTICS = ("std_err", "ci95_low", "ci95_high", "std_dev_across_runs", "std_err_across_runs")

Tasks = list[list[dict[str, Any]]]


def rewarded(*tasks: list[Any]) -> Tasks:
    """Tasks with these rewards, without rollout indices."""
    return [[{"reward": reward} for reward in rewards] for rewards in tasks]


def answered(*votes: tuple[Any, Any]) -> Tasks:
    """One task with these answers and rewards."""
    return [[{"answer": answer, "reward": reward} for answer, reward in votes]]


def metrics_of(tasks: Tasks, answer_key: str | None = None) -> dict[str, Any]:
    return compute_pass_majority_metrics(tasks, None, answer_key)[0]


def without_statistics(metrics: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in metrics.items()
        if name.rpartition("/")[2] not in STATISTICS and name != "per_sample_aggregate"
    }


def majority_of(*votes: tuple[Any, Any]) -> list[float]:
    """`majority@k/accuracy` for every k."""
    metrics = metrics_of(answered(*votes), "answer")
    return [metrics[f"majority@{k}/accuracy"] for k in range(1, len(votes) + 1)]


EXAMPLE = rewarded([1, 0, 1, 1], [0, 0, 1, 0])


def test_worked_example_of_the_contract() -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(EXAMPLE)
    assert without_statistics(metrics) == {
        "pass@1/accuracy": 50.0,
        "pass@2/accuracy": 75.0,
        "pass@3/accuracy": 87.5,
        "pass@4/accuracy": 100.0,
        "pass@1[avg-of-1]/accuracy": 50.0,
        "pass@1[avg-of-2]/accuracy": 25.0,
        "pass@1[avg-of-3]/accuracy": 50.0,
        "pass@1[avg-of-4]/accuracy": 50.0,
    }
    assert metrics["per_sample_aggregate"] == {"accuracy": [50.0, 0.0, 100.0, 50.0]}
    assert [[own["accuracy"] for own in task] for task in scores] == [[1, 0, 1, 1], [0, 0, 1, 0]]
    assert (names, max_k) == (["accuracy"], 4)


def test_spread_across_runs_of_the_worked_example() -> None:
    metrics = metrics_of(EXAMPLE)
    spread = statistics.stdev([50.0, 0.0, 100.0])
    assert metrics["pass@1[avg-of-3]/accuracy/std_dev_across_runs"] == pytest.approx(spread)
    assert metrics["pass@1[avg-of-3]/accuracy/std_err_across_runs"] == pytest.approx(spread / math.sqrt(3))
    assert "pass@1[avg-of-1]/accuracy/std_dev_across_runs" not in metrics


@pytest.mark.parametrize("tasks", [[], [[]], [[], []]])
def test_without_rollouts_there_are_no_metrics(tasks: Tasks) -> None:
    scores: list[list[Any]] = [[] for _ in tasks]
    assert compute_pass_majority_metrics(tasks, None, "answer") == ({}, scores, [], 0)
    metrics: dict[str, Any] = {}
    add_avg_sample_std_dev(metrics, scores, [], 0)
    assert metrics == compute_subset_metrics(tasks, "level") == {}


def test_rollouts_without_scores_have_no_metrics() -> None:
    assert compute_pass_majority_metrics([[{}, {"reward": None}]]) == ({}, [[{}, {}]], [], 2)


def test_single_rollout_has_a_score_but_no_uncertainty() -> None:
    assert metrics_of(rewarded([1])) == {
        "pass@1/accuracy": 100.0,
        "pass@1[avg-of-1]/accuracy": 100.0,
        "per_sample_aggregate": {"accuracy": [100.0]},
    }


def test_first_k_rollouts_are_those_with_the_smallest_indices() -> None:
    rollouts = [{"_ng_rollout_index": index, "reward": index / 10} for index in (2, 0, 1)]
    metrics, scores, _, _ = compute_pass_majority_metrics([rollouts])
    assert scores == [[{"accuracy": 0.0}, {"accuracy": 0.1}, {"accuracy": 0.2}]]
    assert metrics["pass@2/accuracy"] == 10.0
    assert [rollout["_ng_rollout_index"] for rollout in rollouts] == [2, 0, 1]


def test_rollouts_without_an_index_come_last_in_their_order() -> None:
    rollouts = [{"reward": 3}, {"reward": 2, "_ng_rollout_index": 5}, {"reward": 4}]
    _, scores, _, _ = compute_pass_majority_metrics([rollouts])
    assert [own["accuracy"] for own in scores[0]] == [2, 3, 4]


def test_task_with_fewer_than_k_rollouts_is_left_out_of_pass_at_k_only() -> None:
    metrics = metrics_of(rewarded([1], [0, 0, 1]))
    assert metrics["pass@1/accuracy"] == pytest.approx(100 * (1 + 1 / 3) / 2)
    assert metrics["pass@2/accuracy"] == pytest.approx(100 * 2 / 3)
    assert metrics["pass@1[avg-of-2]/accuracy"] == 50.0
    assert metrics["per_sample_aggregate"] == {"accuracy": [50.0, 0.0, 100.0]}


def test_pass_at_k_is_absent_if_no_task_has_k_rollouts() -> None:
    metrics = metrics_of(rewarded([1, None, 0], [1]))
    assert "pass@2/accuracy" in metrics
    assert "pass@3/accuracy" not in metrics
    assert metrics["pass@1[avg-of-3]/accuracy"] == 75.0


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, -math.inf, "1", [1], {}, 10**400, -(10**400)])
def test_score_that_is_not_a_finite_number_counts_as_missing(odd: Any) -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(rewarded([odd, 1, 0], [1, 1, odd]))
    assert scores == [[{}, {"accuracy": 1.0}, {"accuracy": 0.0}], [{"accuracy": 1.0}, {"accuracy": 1.0}, {}]]
    assert (metrics["pass@1/accuracy"], metrics["pass@2/accuracy"]) == (75.0, 100.0)
    assert metrics["pass@1[avg-of-1]/accuracy"] == 100.0
    assert (names, max_k) == (["accuracy"], 3)
    json.dumps(metrics, allow_nan=False)


@pytest.mark.parametrize("make", [bool, int, float, np.bool_, np.int64, np.float32, Fraction])
def test_all_number_types_are_accepted(make: Any) -> None:
    rewards = [[make(value) for value in values] for values in ([1, 0, 1, 1], [0, 0, 1, 0])]
    assert metrics_of(rewarded(*rewards)) == metrics_of(EXAMPLE)


def test_score_names_are_in_order_of_first_appearance_and_may_be_missing() -> None:
    def score(rollout: dict[str, Any]) -> dict[str, Any]:
        return rollout["scores"]

    tasks = [
        [{"scores": {"b": 1}}, {"scores": {"b": 0, "a": 1}}],
        [{"scores": {}}, {"scores": {"a": 0, "never": None}}],
    ]
    metrics, scores, names, _ = compute_pass_majority_metrics(tasks, score)
    assert names == ["b", "a"]
    assert scores == [[{"b": 1}, {"b": 0, "a": 1}], [{}, {"a": 0}]]
    assert (metrics["pass@1/a"], metrics["pass@1/b"], metrics["pass@2/b"]) == (50.0, 50.0, 100.0)
    assert "pass@2/a" not in metrics
    assert metrics["per_sample_aggregate"] == {"b": [100.0, 0.0], "a": [None, 50.0]}
    assert "pass@1[avg-of-2]/a/std_dev_across_runs" not in metrics


def test_score_name_with_braces_is_unchanged() -> None:
    metrics, *_ = compute_pass_majority_metrics([[{}]], lambda _: {"{k}{0}": 1})
    assert set(without_statistics(metrics)) == {"pass@1/{k}{0}", "pass@1[avg-of-1]/{k}{0}"}


def test_very_large_numbers_give_neither_infinity_nor_an_error() -> None:
    largest = 1.7e308
    tasks = rewarded([largest, largest, 1.0], [largest, -largest, -largest])
    metrics, scores, names, max_k = compute_pass_majority_metrics(tasks)
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    json.dumps(metrics, allow_nan=False)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_spread_of_very_small_and_very_large_scores_is_precise(unit: float) -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(
        rewarded([unit, 3 * unit], [unit, 3 * unit])
    )
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    spread = math.sqrt(2) * unit
    metric = "pass@1[avg-of-2]/accuracy"
    assert metrics[f"{metric}/avg_sample_std_dev"] == pytest.approx(spread, rel=1e-12, abs=0)
    assert metrics[f"{metric}/std_dev_across_runs"] == pytest.approx(100 * spread, rel=1e-12, abs=0)


def test_pass_at_k_of_other_values_is_the_largest_of_the_first_k() -> None:
    metrics = metrics_of(rewarded([0.5, 0.25, 1.0], [1, 0, 0]))
    assert metrics["pass@1/accuracy"] == pytest.approx(100 * (0.5 + 1 / 3) / 2)
    assert metrics["pass@2/accuracy"] == pytest.approx(100 * (0.5 + 2 / 3) / 2)
    assert metrics["pass@3/accuracy"] == 100.0


def test_pass_at_one_equals_the_average_of_all() -> None:
    metrics = metrics_of(rewarded([1, 1, 1] + [0] * 7, [1] + [0] * 9))
    assert metrics["pass@1/accuracy"] == metrics["pass@1[avg-of-10]/accuracy"] == 20.0


@given(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_success(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    draws = [any(draw) for draw in combinations(values, k)]
    assert pass_at_k(values, k) == float(Fraction(sum(draws), len(draws)))


@settings(deadline=None)
@given(st.integers(1, 6000), st.data())
def test_pass_at_k_of_thousands_of_rollouts_is_exact(count: int, data: st.DataObject) -> None:
    solved = data.draw(st.integers(0, count) | st.integers(0, min(3, count)))
    k = data.draw(st.integers(1, count) | st.integers(1, min(5, count)))
    missed = math.prod(Fraction(count - solved - i, count - i) for i in range(min(k, count - solved + 1)))
    assert pass_at_k([1] * solved + [0] * (count - solved), k) == float(1 - missed)


@pytest.mark.parametrize("k", [-1, 0, 4])
def test_pass_at_k_outside_1_to_the_number_of_rollouts_is_an_error(k: int) -> None:
    with pytest.raises(ValueError, match=rf"pass@{k}: the task has 3 rollouts; k must be from 1 to"):
        pass_at_k([1, 0, 1], k)


@pytest.mark.parametrize(("tasks", "rollouts"), [(1, 1000), (2000, 64)])
def test_large_groups_take_seconds(tasks: int, rollouts: int) -> None:
    chance = random.Random(0)
    many = [[{"reward": chance.random() < 0.3, "answer": "7"} for _ in range(rollouts)] for _ in range(tasks)]
    start = time.process_time()
    metrics, scores, names, max_k = compute_pass_majority_metrics(many, None, "answer")
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    assert time.process_time() - start < 8
    assert metrics[f"majority@{rollouts}/no_answer"] == 0.0


def test_majority_is_the_most_frequent_pair_of_answer_and_score() -> None:
    assert majority_of(("a", 1), ("b", 0), ("b", 0)) == [100.0, 50.0, 0.0]


def test_tied_pairs_count_with_their_mean_score() -> None:
    assert majority_of(("a", 1), ("b", 0), ("c", 0), ("a", 1), ("b", 0))[2:] == [100 * (1 / 3), 100.0, 50.0]


def test_same_answer_with_another_score_is_another_pair() -> None:
    assert majority_of(("a", 1), ("a", 0), ("b", 0.5), ("b", 0.5))[-1] == 50.0


def test_rollout_without_an_answer_does_not_vote_but_counts_towards_k() -> None:
    assert majority_of((None, 1), (None, 1), ("a", 1), ("b", 0.5)) == [0.0, 0.0, 100.0, 75.0]


def test_rollout_without_a_score_does_not_vote() -> None:
    assert majority_of(("a", None), ("b", 1), ("a", None))[:2] == [100.0, 100.0]


def test_empty_text_is_an_answer() -> None:
    metrics = metrics_of(answered(("", 1)), "answer")
    assert (metrics["majority@1/accuracy"], metrics["pass@1/no_answer"]) == (100.0, 0.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, {"x": None}], [1, {"x": None}]),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        (1, 1.0),
        ((1, 2), [1, 2]),
        (math.nan, float("nan")),
    ],
)
def test_equal_answers_vote_together(one: Any, other: Any) -> None:
    assert majority_of((one, 1), ("b", 0), (other, 1))[-1] == 100.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, "1"),
        (True, "True"),
        ([], {}),
        ([1], [True]),
        ({"1": 0}, {1: 0}),
        ("a", "A"),
    ],
)
def test_different_answers_vote_separately(one: Any, other: Any) -> None:
    assert majority_of((one, 1), ("b", 0), ("b", 0), (other, 1))[-1] == 0.0


def test_no_answer_is_an_additional_score() -> None:
    tasks = [*answered((None, 0), ("a", 1)), [{"reward": 0}, {"reward": 0, "answer": None}]]
    metrics, scores, names, _ = compute_pass_majority_metrics(tasks, None, "answer")
    assert names == ["accuracy", "no_answer"]
    assert [[own["no_answer"] for own in task] for task in scores] == [[1, 0], [1, 1]]
    assert (metrics["pass@1/no_answer"], metrics["pass@2/no_answer"]) == (75.0, 100.0)
    assert metrics["per_sample_aggregate"]["no_answer"] == [100.0, 50.0]
    assert metrics["majority@2/no_answer"] == 0.0


def test_without_an_answer_key_there_is_no_majority() -> None:
    assert not any("majority" in key or "no_answer" in key for key in metrics_of(answered(("a", 1))))


def test_every_metric_has_a_standard_error_and_an_interval() -> None:
    metrics = metrics_of(answered(("a", 1), ("b", 0)) + answered(("a", 0), (None, 0)), "answer")
    for metric in without_statistics(metrics):
        low, high = metrics[f"{metric}/ci95_low"], metrics[f"{metric}/ci95_high"]
        assert 0 <= low <= metrics[metric] <= high <= 100
        assert low < high
    assert metrics["pass@1/accuracy/std_err"] == pytest.approx(
        100 * statistics.stdev([0.5, 0]) / math.sqrt(2)
    )


def test_pass_at_k_of_one_task_has_no_standard_error() -> None:
    metrics = metrics_of(rewarded([1], [0, 1]))
    assert "pass@1/accuracy/std_err" in metrics
    assert "pass@2/accuracy" in metrics
    assert not any(key.startswith("pass@2/accuracy/") for key in metrics)


def test_interval_of_values_outside_zero_to_one_is_not_clipped() -> None:
    metrics = metrics_of(rewarded([-3.0], [5.0]))
    assert metrics["pass@1/accuracy/ci95_low"] < -300
    assert metrics["pass@1/accuracy/ci95_high"] > 500


def test_average_standard_deviation_within_tasks_is_added() -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(rewarded([1, 0, 1, 1], [0, 0, 1, 0], [1]))
    before = dict(metrics)
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    added = {key: value for key, value in metrics.items() if key not in before}
    half, third = math.sqrt(1 / 2), math.sqrt(1 / 3)
    assert added == {
        "pass@1[avg-of-2]/accuracy/avg_sample_std_dev": pytest.approx(half / 2),
        "pass@1[avg-of-3]/accuracy/avg_sample_std_dev": pytest.approx(third),
        "pass@1[avg-of-4]/accuracy/avg_sample_std_dev": pytest.approx(0.5),
    }


def leveled(*rollouts: tuple[Any, Any]) -> list[dict[str, Any]]:
    """A task whose rollouts have these levels (none: ...) and rewards."""
    return [
        {"reward": reward} if level is ... else {"reward": reward, "level": level}
        for level, reward in rollouts
    ]


def test_subset_has_the_metrics_of_its_own_tasks() -> None:
    easy, hard = EXAMPLE
    tasks = [[{**one, "level": "easy"} for one in easy], [{**one, "level": "hard"} for one in hard]]
    metrics = compute_subset_metrics([*tasks, *rewarded([1, 1])], "level")
    expected = {f"easy/{key}": value for key, value in metrics_of([easy]).items()}
    expected |= {f"hard/{key}": value for key, value in metrics_of([hard]).items()}
    del expected["easy/per_sample_aggregate"], expected["hard/per_sample_aggregate"]
    assert metrics == expected
    assert (metrics["easy/pass@2/accuracy"], metrics["hard/pass@2/accuracy"]) == (100.0, 50.0)


def test_rollout_without_the_field_gets_the_subset_of_its_task() -> None:
    metrics = compute_subset_metrics([leveled((..., 1), ("easy", 0), (None, 1), (..., 1))], "level")
    assert metrics["easy/pass@1/accuracy"] == 75.0


def test_task_with_different_values_is_split_among_subsets() -> None:
    metrics = compute_subset_metrics([leveled((1, 1), (2, 0), (..., 1), (2, 0))], "level")
    assert (metrics["1/pass@2/accuracy"], metrics["2/pass@2/accuracy"]) == (100.0, 0.0)


def test_false_values_form_a_subset() -> None:
    tasks = [leveled((False, 1)), leveled((0, 0)), leveled((["x"], 1))]
    subsets = {key.partition("/")[0] for key in compute_subset_metrics(tasks, "level")}
    assert subsets == {"False", "0", "['x']"}


def test_subsets_accept_score_function_and_answer_key() -> None:
    tasks = [[{"level": "easy", "answer": answer} for answer in ("a", "b", "b")]]
    metrics = compute_subset_metrics(tasks, "level", lambda one: {"right": one["answer"] == "b"}, "answer")
    assert metrics["easy/majority@3/right"] == 100.0
    assert metrics["easy/pass@1/no_answer"] == 0.0


def test_highest_k_selects_the_largest_k_without_uncertainties() -> None:
    metrics = metrics_of(answered(("a", 1), ("b", 0)) * 3 + rewarded([0]), "answer")
    assert set(highest_k_metrics(metrics, "pass@{k}")) == {"pass@2/accuracy", "pass@2/no_answer"}
    averages = highest_k_metrics(metrics, "pass@1[avg-of-{k}]", ["accuracy"])
    assert averages == {"pass@1[avg-of-2]/accuracy": metrics["pass@1[avg-of-2]/accuracy"]}
    assert set(highest_k_metrics(metrics, "majority@{k}", exclude_names=["no_answer"])) == {
        "majority@2/accuracy"
    }


def test_highest_k_compares_numbers_instead_of_text() -> None:
    metrics = {f"pass@{k}/x": k for k in (2, 9, 10)}
    assert highest_k_metrics(metrics, "pass@{k}") == {"pass@10/x": 10}


def test_highest_k_is_separate_for_each_pattern() -> None:
    metrics = {"pass@1/x": 1, "pass@1[avg-of-4]/x": 2, "easy/pass@8/x": 3, "mean/x": 4, "pass@16": 5}
    assert highest_k_metrics(metrics, "pass@{k}") == {"pass@1/x": 1}
    assert highest_k_metrics(metrics, "pass@1[avg-of-{k}]") == {"pass@1[avg-of-4]/x": 2}
    assert highest_k_metrics(metrics, "easy/pass@{k}") == {"easy/pass@8/x": 3}
    assert highest_k_metrics(metrics, "majority@{k}") == {}


def test_highest_k_considers_selected_names_only() -> None:
    metrics = {"pass@2/a": 1, "pass@4/b": 2, "pass@4/c/d": 3}
    assert highest_k_metrics(metrics, "pass@{k}", score_names=["a"]) == {"pass@2/a": 1}
    assert highest_k_metrics(metrics, "pass@{k}", exclude_names=["b", "c/d"]) == {"pass@2/a": 1}
    assert highest_k_metrics(metrics, "pass@{k}", score_names=[]) == {}
    assert highest_k_metrics(metrics, "pass@{k}") == {"pass@4/b": 2, "pass@4/c/d": 3}


def test_score_with_the_name_of_an_uncertainty_is_a_score() -> None:
    metrics = {"pass@1/std_err": 1, "pass@1/std_err/std_err": 2, "pass@1/x/avg_sample_std_dev": 3}
    assert highest_k_metrics(metrics, "pass@{k}") == {"pass@1/std_err": 1}


def test_pattern_without_k_is_an_error() -> None:
    with pytest.raises(ValueError, match=r'no \{k\} in "pass@4"; write \{k\} in place of the number'):
        highest_k_metrics({}, "pass@4")
