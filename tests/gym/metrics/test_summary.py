"""The headline shows the uncertainty of the mean and what is missing; warnings show everything doubtful."""

import json
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.metrics import Columns, compute_pass_majority_metrics, summarize
from nemo_gym.metrics.headline import between, headline, warnings
from nemo_gym.metrics.summary import Bin


def columns_of(tasks: Iterable[Sequence[float | None]], retried: Iterable[tuple[int, int]] = ()) -> Columns:
    columns, again = Columns(), {*retried}
    for task, rewards in enumerate(tasks):
        for index, reward in enumerate(rewards):
            numbers = {} if reward is None else {"reward": float(reward)}
            columns.add(task, index, numbers, is_retried=(task, index) in again)
    return columns


def line(tasks: Iterable[Sequence[float | None]], planned: int | None = None) -> str:
    return headline(summarize("agent", columns_of(tasks), planned))


def test_headline_of_an_incomplete_run_shows_bounds() -> None:
    rng = random.Random(7)
    tasks = []
    for _ in range(400):
        chance = rng.random()
        tasks.append([float(rng.random() < chance) for _ in range(8) if rng.random() > 0.04])
    expected = line(tasks, planned=3200)
    assert expected == (
        "reward 0.51 ± 0.03 (95 % CI, 400 tasks × 8), 96 % complete, 0.49–0.53 if all missing fail/pass"
    )


@pytest.mark.parametrize(
    ("tasks", "planned", "expected"),
    [
        ([], None, "no rollouts"),
        ([], 8, "no rollouts, 0 % complete"),
        ([[None], [None]], None, "no rewards, 2 tasks × 1"),
        ([[1, 0, 1, 1]], None, "reward 0.75 (1 task × 4; no interval for a single task)"),
        ([[1], [1], [1]], 3, "reward 1.00 (95 % CI 0.29–1.00, 3 tasks × 1), 100 % complete"),
        ([[0], [0], [0]], 3, "reward 0.00 (95 % CI 0.00–0.71, 3 tasks × 1), 100 % complete"),
        ([[1, 0], [0]], None, "reward 0.33 (95 % CI 0.00–1.00, 2 tasks, 3 rollouts)"),
        (
            [[1, 0]] * 200 + [[1]],
            500,
            "reward 0.5012 ± 0.0025 (95 % CI, 201 tasks, 401 rollouts), 80 % complete, 0.40–0.60",
        ),
    ],
)
def test_headline_of_small_and_uneven_runs(
    tasks: list[list[float | None]], planned: int | None, expected: str
) -> None:
    assert line(tasks, planned).startswith(expected)


def test_headline_shows_100_percent_only_if_nothing_is_missing() -> None:
    tasks = [[1.0]] * 9999
    assert "99 % complete" in line(tasks, 10_000)
    assert "100 % complete" in line(tasks, 9999)
    assert "1 % complete" in line([[1.0], [0.0]], 10_000)


def test_bounds_are_the_means_if_all_missing_rollouts_fail_or_pass() -> None:
    summary = summarize("agent", columns_of([[1, 0], [1, 1]]), planned=8)
    assert summary.if_missing == (3 / 8, 7 / 8)
    assert summary.coverage() == {
        "planned": 8,
        "completed": 4,
        "missing": 4,
        "completion_pct": 50.0,
        "mean_reward_if_missing_fail": 3 / 8,
        "mean_reward_if_missing_pass": 7 / 8,
    }
    wide = summarize("agent", columns_of([[-2, 5]]), planned=3)
    assert wide.if_missing == pytest.approx(
        ((3 - 2) / 3, (3 + 5) / 3)
    )  # a failure counts as the worst reward seen


def test_retried_rollouts_with_other_rewards_cause_a_warning() -> None:
    rng = random.Random(1)
    tasks, retried = [], []
    for task in range(100):
        tasks.append([float(rng.random() < (0.2 if index == 0 else 0.7)) for index in range(4)])
        retried.append((task, 0))
    summary = summarize("agent", columns_of(tasks, retried))
    assert summary.retries is not None
    assert summary.retries.retried == 100
    assert summary.retries.p_value < 1e-6
    (warning,) = warnings(summary)
    assert warning.startswith("warning: the 100 rollouts that needed a retry score 0.2")


def test_retried_rollouts_with_similar_rewards_cause_no_warning() -> None:
    flagged = 0
    for seed in range(200):
        rng = random.Random(seed)
        tasks = []
        for _ in range(40):
            chance = rng.random()
            tasks.append([float(rng.random() < chance) for _ in range(6)])
        retried = [(task, index) for task in range(40) for index in range(6) if rng.random() < 0.2]
        flagged += bool(warnings(summarize("agent", columns_of(tasks, retried))))
    assert 1 <= flagged <= 22  # 5 % of 200, by chance


def test_few_retries_cause_no_warning() -> None:
    tasks = [[0.0, 1.0]] * 50
    assert summarize("agent", columns_of(tasks, [(task, 0) for task in range(4)])).retries is None
    assert summarize("agent", columns_of(tasks)).retries is None
    assert summarize("agent", columns_of([[1.0] * 20], [(0, place) for place in range(10)])).retries is None


def test_values_that_are_not_finite_cause_a_warning() -> None:
    columns = Columns()
    columns.add(0, 0, {"reward": 1.0}, ["speed", "speed"])
    (warning,) = warnings(summarize("agent", columns))
    assert "NaN or infinite" in warning and "speed 2" in warning


def test_histogram_has_one_bin_per_value_or_ranges() -> None:
    few = summarize("agent", columns_of([[1, 0, 1], [0.5]]))
    assert few.histogram == [Bin(0.0, 0.0, 1), Bin(0.5, 0.5, 1), Bin(1.0, 1.0, 2)]
    many = summarize("agent", columns_of([[place / 99 for place in range(100)]]))
    assert [one.count for one in many.histogram] == [10] * 10
    assert (many.histogram[0].low, many.histogram[-1].high) == (0.0, 1.0)


REWARDS = st.lists(
    st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=6), min_size=1, max_size=6
)


@given(REWARDS)
def test_pass_at_k_of_a_summary_agrees_with_pass_at_k(tasks: list[list[float | None]]) -> None:
    summary = summarize("agent", columns_of(tasks))
    rollouts = [[{} if reward is None else {"reward": reward} for reward in task] for task in tasks]
    metrics, *_ = compute_pass_majority_metrics(rollouts)
    for k, estimate in summary.pass_at.items():
        assert 100 * estimate.mean == pytest.approx(metrics[f"pass@{k}/accuracy"])
        error = metrics.get(f"pass@{k}/accuracy/std_err")
        if estimate.std_err is not None:
            assert error == pytest.approx(100 * estimate.std_err, abs=1e-9)
    sizes = [sum(reward is not None for reward in task) for task in tasks]
    most = max(sizes)
    shown = {k for k in {1, 2, 4, most} if k <= most and 2 * sum(size >= k for size in sizes) >= len(sizes)}
    assert set(summary.pass_at) == (shown if most > 1 else set())


def test_summary_has_pass_at_k_only_if_rewards_are_0_or_1() -> None:
    assert summarize("agent", columns_of([[0.5, 1.0], [0.0, 1.0]])).pass_at == {}
    assert list(summarize("agent", columns_of([[0.0, 1.0, 1.0, 0.0, 1.0]] * 2)).pass_at) == [1, 2, 4, 5]


ANY = st.lists(
    st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5), max_size=5
)


@given(ANY, st.none() | st.integers(0, 100))
def test_data_of_any_rewards_is_json(tasks: list[list[float | None]], planned: int | None) -> None:
    summary = summarize("agent", columns_of(tasks), planned)
    headline(summary)
    text = json.dumps(summary.as_data(), allow_nan=False)
    assert json.loads(text)["rollouts"] == sum(map(len, tasks))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.6, 0.64, "0.60–0.64"),
        (0.601, 0.602, "0.6010–0.6020"),
        (1.0, 1.0, "1.00–1.00"),
        (0.0, 3e300, "0.00–3e+300"),
    ],
)
def test_figures_have_enough_decimals_to_differ(low: float, high: float, expected: str) -> None:
    assert between(low, high) == expected
