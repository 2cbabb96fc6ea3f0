"""pass@k, averages and majorities agree with slow, direct implementations of their definitions."""

import json
import math
import random
import statistics
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.pass_at_k import add_avg_sample_std_dev, compute_pass_majority_metrics
from tests.gym.metrics.test_pass_at_k import Tasks, without_statistics

VALUES = st.sampled_from([0, 1, 0.0, 1.0, True, False])
REWARDS = VALUES | st.sampled_from([None, math.nan, math.inf, "text"])
GRADED = REWARDS | st.sampled_from([0.5, 0.25, -2, 7.5])
ANSWERS = st.none() | st.sampled_from(["a", "b", 1, True, "1", [1], {"x": [1]}])


def tasks_with(rewards: st.SearchStrategy[Any]) -> st.SearchStrategy[Tasks]:
    rollout = st.fixed_dictionaries({}, optional={"reward": rewards, "answer": ANSWERS})
    return st.lists(st.lists(rollout, max_size=5), max_size=4)


def slow_score(rollout: dict[str, Any], name: str) -> Fraction | None:
    if name == "no_answer":
        return Fraction(rollout.get("answer") is None)
    reward = rollout.get("reward")
    return Fraction(reward) if isinstance(reward, (int, float)) and math.isfinite(reward) else None


def slow_pass(values: list[Fraction], k: int) -> Fraction:
    if any(value not in (0, 1) for value in values):
        return max(values[:k])
    draws = list(combinations(values, k))
    return Fraction(sum(max(draw) for draw in draws), len(draws))


def slow_majority(votes: list[tuple[str, Fraction]]) -> Fraction:
    votes = [vote for vote in votes if vote[0] != "null"]
    most = max((votes.count(vote) for vote in votes), default=0)
    tied = [
        vote[1] for place, vote in enumerate(votes) if votes.count(vote) == most and vote not in votes[:place]
    ]
    return Fraction(sum(tied), len(tied)) if tied else Fraction(0)


def slow_metrics(tasks: Tasks) -> dict[str, float]:
    """A direct implementation of the definitions, with the standard errors."""
    result: dict[str, float] = {}
    for name in ("accuracy", "no_answer"):
        groups = []
        for task in tasks:
            scored = [(json.dumps(one.get("answer")), slow_score(one, name)) for one in task]
            groups.append([(answer, score) for answer, score in scored if score is not None])
        groups = [group for group in groups if group]
        for k in range(1, max(map(len, tasks), default=0) + 1):
            values = [[score for _, score in group] for group in groups]
            figures = {
                f"pass@{k}": [slow_pass(own, k) for own in values if len(own) >= k],
                f"pass@1[avg-of-{k}]": [Fraction(sum(own[:k]), len(own[:k])) for own in values],
                f"majority@{k}": [slow_majority(group[:k]) for group in groups],
            }
            for metric, figure in figures.items():
                if figure:
                    result[f"{metric}/{name}"] = float(100 * Fraction(sum(figure), len(figure)))
                if len(figure) > 1:
                    error = float(statistics.stdev(figure)) / math.sqrt(len(figure))
                    result[f"{metric}/{name}/std_err"] = 100 * error
    return result


@settings(deadline=None)
@given(tasks_with(REWARDS) | tasks_with(GRADED))
def test_metrics_agree_with_their_definitions(tasks: Tasks) -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(tasks, None, "answer")
    json.dumps(metrics, allow_nan=False)
    expected = slow_metrics(tasks)
    ours = {key: value for key, value in metrics.items() if key in without_statistics(metrics)}
    ours |= {key: value for key, value in metrics.items() if key.endswith("/std_err")}
    assert ours == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert [len(task) for task in scores] == [len(task) for task in tasks]
    assert sorted(names) == sorted({name for task in scores for own in task for name in own})
    assert max_k == max(map(len, tasks), default=0)


@settings(deadline=None)
@given(tasks_with(GRADED))
def test_runs_and_spreads_agree_with_their_definitions(tasks: Tasks) -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(tasks)
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    if not names:
        assert metrics == {}
        return
    runs: list[float | None] = []
    for place in range(max_k):
        there = [slow_score(task[place], "accuracy") for task in tasks if len(task) > place]
        values = [float(value) for value in there if value is not None]
        runs.append(100 * statistics.fmean(values) if values else None)
    assert metrics["per_sample_aggregate"] == {"accuracy": pytest.approx(runs)}
    for k in range(1, max_k + 1):
        metric = f"pass@1[avg-of-{k}]/accuracy"
        means = [mean for mean in runs[:k] if mean is not None]
        spread = statistics.stdev(means) if len(means) > 1 else None
        error = spread / math.sqrt(len(means)) if spread is not None else None
        assert metrics.get(f"{metric}/std_dev_across_runs") == pytest.approx(spread)
        assert metrics.get(f"{metric}/std_err_across_runs") == pytest.approx(error)
        groups = [[own["accuracy"] for own in task if own][:k] for task in scores]
        spreads = [statistics.stdev(group) for group in groups if len(group) > 1]
        expected = statistics.fmean(spreads) if spreads else None
        assert metrics.get(f"{metric}/avg_sample_std_dev") == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(tasks_with(GRADED), st.randoms())
def test_rollouts_with_indices_may_be_in_any_order(tasks: Tasks, chance: random.Random) -> None:
    tasks = [[{**one, "_ng_rollout_index": index} for index, one in enumerate(task)] for task in tasks]
    shuffled = [chance.sample(task, len(task)) for task in tasks]
    assert compute_pass_majority_metrics(shuffled, None, "answer") == compute_pass_majority_metrics(
        tasks, None, "answer"
    )
