import math
import statistics
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nemo_gym.metrics.student import critical_t
from nemo_gym.metrics.uncertainty import (
    Estimate,
    Range,
    estimate_mean,
    estimate_task_mean,
    paired_difference,
)

VALUES = st.floats(-1e6, 1e6)
GROUPS = st.lists(st.lists(VALUES, min_size=1, max_size=6), min_size=2, max_size=8)
BINARY_GROUPS = st.lists(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=5), min_size=2, max_size=8)


def estimate_of(groups: list[list[float]], are_shares: bool = False) -> Estimate:
    totals, counts = [sum(group) for group in groups], [len(group) for group in groups]
    return estimate_mean(totals, counts, are_shares=are_shares)


def interval_of(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def slow_clustered_error(groups: list[list[float]]) -> float:
    """Adds up residuals within a task before squaring, because they may all have the same sign."""
    values = [value for group in groups for value in group]
    mean = math.fsum(values) / len(values)
    squares = [math.fsum(value - mean for value in group) ** 2 for group in groups]
    correction = len(groups) / (len(groups) - 1)
    return math.sqrt(correction * math.fsum(squares)) / len(values)


@given(GROUPS)
def test_error_agrees_with_its_definition(groups: list[list[float]]) -> None:
    estimate = estimate_of(groups)
    assert estimate.std_err == pytest.approx(slow_clustered_error(groups), rel=1e-6, abs=1e-7)
    assert estimate.mean == pytest.approx(statistics.fmean(chain(*groups)), rel=1e-9, abs=1e-7)
    assert estimate.tasks == len(groups)


@given(st.integers(1, 5), st.data())
def test_error_of_equal_groups_is_that_of_the_task_means(size: int, data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.lists(VALUES, min_size=size, max_size=size), min_size=2, max_size=8))
    means = [statistics.fmean(group) for group in groups]
    expected = statistics.stdev(means) / math.sqrt(len(groups))
    assert estimate_of(groups).std_err == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert estimate_task_mean(means).std_err == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_standard_error_of_a_worked_example() -> None:
    estimate = estimate_of([[1, 1], [0], [1, 0, 0]])
    # Mean 1/2; residuals of the tasks 1, -1/2 and -1/2: the square root of 3/2 x 3/2, over 6.
    assert estimate.mean == 0.5
    assert estimate.std_err == pytest.approx(0.25)
    reach = critical_t(2) * 0.25
    assert interval_of(estimate) == pytest.approx((0.5 - reach, 0.5 + reach))
    assert estimate.reach == pytest.approx(reach)


def test_same_rollouts_in_more_tasks_have_a_smaller_error() -> None:
    together = estimate_of([[1, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 0]]).std_err
    apart = estimate_of([[value] for value in [1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]]).std_err
    assert together is not None
    assert apart is not None
    assert together > 1.6 * apart


@given(GROUPS)
def test_interval_contains_the_mean(groups: list[list[float]]) -> None:
    estimate = estimate_of(groups)
    low, high = interval_of(estimate)
    assert low <= estimate.mean <= high


@given(BINARY_GROUPS)
def test_interval_of_binary_values_is_within_0_and_1_and_never_a_point(groups: list[list[float]]) -> None:
    estimate = estimate_of(groups, are_shares=True)
    low, high = interval_of(estimate)
    assert 0 <= low <= estimate.mean <= high <= 1
    assert low < high


@pytest.mark.parametrize("tasks", [2, 10, 300])
def test_interval_of_all_successes_is_exact_for_the_number_of_tasks(tasks: int) -> None:
    low, high = interval_of(estimate_task_mean([1.0] * tasks, are_shares=True))
    assert high == 1.0
    assert low**tasks == pytest.approx(0.025)
    low, high = interval_of(estimate_task_mean([0.0] * tasks, are_shares=True))
    assert low == 0.0
    assert (1 - high) ** tasks == pytest.approx(0.025)


def test_interval_of_binary_values_is_clipped_at_0_and_1() -> None:
    values = [0.0, 0.0, 0.0, 1.0]
    assert interval_of(estimate_task_mean(values))[0] < 0
    low, high = interval_of(estimate_task_mean(values, are_shares=True))
    assert 0 <= low < 0.001
    ends = interval_of(estimate_task_mean([1 - value for value in values], are_shares=True))
    assert ends == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(
    ("tasks", "size", "rate"), [(20, 8, 0.05), (20, 8, 0.98), (50, 4, 0.97), (12, 4, 0.5)]
)
def test_interval_covers_the_true_rate_near_0_and_1(tasks: int, size: int, rate: float) -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(1000):
        chances = rng.beta(5 * rate, 5 * (1 - rate), tasks)  # tasks differ
        estimate = estimate_mean(rng.binomial(size, chances), np.full(tasks, size), are_shares=True)
        low, high = interval_of(estimate)
        covered += low <= rate <= high
    assert covered >= 930


def test_tasks_with_equal_means_have_the_uncertainty_of_their_rollouts() -> None:
    low, high = interval_of(estimate_of([[1, 0], [0, 1]], are_shares=True))
    assert (low, high) == pytest.approx((0.067586, 0.932414), abs=1e-6)  # two of four, Clopper and Pearson


def test_single_task_has_no_interval() -> None:
    estimate = estimate_of([[1, 0, 1, 1]], are_shares=True)
    assert (estimate.mean, estimate.tasks, estimate.reach) == (0.75, 1, None)
    assert estimate.named("pass@1") == estimate.scaled(100).named("pass@1") == {}


def test_without_tasks_the_mean_is_nan() -> None:
    estimate = estimate_task_mean([])
    assert math.isnan(estimate.mean)
    assert estimate.named("pass@1") == {}


def test_uncertainties_are_named_after_their_metric() -> None:
    assert Estimate(0.5, 4, 0.25, 0.25, 0.75).scaled(100).named("mean/reward") == {
        "mean/reward/std_err": 25.0,
        "mean/reward/ci95_low": 25.0,
        "mean/reward/ci95_high": 75.0,
    }


def test_very_large_values_have_no_interval_beyond_the_float_range() -> None:
    estimate = estimate_task_mean([1.7e308, -1.7e308, 1.7e308])
    figures = estimate.named("x").values()
    assert all(math.isfinite(figure) for figure in figures)


def coverage(rewards_R_G_N: np.ndarray, truth: float, *, tasks: int) -> float:
    """How often the interval has the truth in it where the rollouts of a run count as so many tasks."""
    hits = 0
    for rewards_G_N in rewards_R_G_N:
        rewards = rewards_G_N.reshape(tasks, -1)
        low, high = interval_of(estimate_mean(rewards.sum(axis=1), np.full(tasks, rewards.shape[1])))
        hits += low <= truth <= high
    return hits / len(rewards_R_G_N)


RUNS = 2000


@pytest.mark.parametrize(
    ("least", "largest", "within"),
    [
        (0.0, 1.0, (0.0, 1.0)),
        (0.2, 0.4, (0.0, 1.0)),
        (0.0, 900.0, (0.0, math.inf)),
        (-1.0, 1.0, (-math.inf, math.inf)),
        (-3.0, -2.0, (-math.inf, math.inf)),
        (math.nan, math.nan, (-math.inf, math.inf)),
    ],
)
def test_range_of_a_quantity_follows_from_its_values(
    least: float, largest: float, within: tuple[float, float]
) -> None:
    assert Range.of_values(least, largest) == within


def test_interval_stays_within_the_range_and_is_otherwise_unchanged() -> None:
    tokens = [3.0, 5.0, 900.0]
    free, counts = estimate_task_mean(tokens), estimate_task_mean(tokens, within=Range(0, math.inf))
    assert interval_of(free)[0] < 0
    assert interval_of(counts) == (0.0, interval_of(free)[1])
    assert counts.std_err == free.std_err
    rewards = [0.9, 1.0, 0.3]
    assert interval_of(estimate_task_mean(rewards))[1] > 1
    low, high = interval_of(estimate_task_mean(rewards, within=Range(0, 1)))
    assert 0 <= low < high == 1


@pytest.mark.parametrize(("tasks", "at_least"), [(3, 0.85), (40, 0.92)])
def test_cutting_an_interval_off_at_its_range_never_loses_the_true_mean(tasks: int, at_least: float) -> None:
    """Token counts are skewed: with few tasks Student's interval covers less than 95 %, cut off or not."""
    rng = np.random.default_rng(24)
    runs = rng.gamma(1.0, 100.0, (RUNS, tasks))
    free = [interval_of(estimate_task_mean(run)) for run in runs]
    cut = [interval_of(estimate_task_mean(run, within=Range.of_values(run.min(), run.max()))) for run in runs]
    covered = [low <= 100.0 <= high for low, high in cut]
    assert covered == [low <= 100.0 <= high for low, high in free]
    assert min(low for low, _ in cut) >= 0.0
    assert np.mean(covered) > at_least


def test_interval_contains_the_true_mean_in_95_percent_of_runs() -> None:
    rng = np.random.default_rng(20)
    difficulty = rng.normal(0.3, 1.0, (RUNS, 25, 1))
    rewards = difficulty + rng.normal(0.0, 1.0, (RUNS, 25, 6))
    assert 0.93 < coverage(rewards, 0.3, tasks=25) < 0.97
    assert coverage(rewards, 0.3, tasks=25 * 6) < 0.75


def test_interval_of_successes_contains_the_true_rate_in_95_percent_of_runs() -> None:
    rng = np.random.default_rng(21)
    chance = rng.beta(0.8, 1.2, (RUNS, 40, 1))
    rewards = (rng.random((RUNS, 40, 8)) < chance).astype(float)
    assert 0.93 < coverage(rewards, 0.4, tasks=40) < 0.97
    assert coverage(rewards, 0.4, tasks=40 * 8) < 0.75


def test_paired_difference_of_a_worked_example() -> None:
    difference = paired_difference([0.5, 0.25, 0.0, 0.25])
    # Deviations 1/4, 0, -1/4, 0: a variance of 1/24, and of the mean 1/96.
    error = math.sqrt(1 / 96)
    assert difference.value == 0.25
    assert difference.std_err == pytest.approx(error)
    assert difference.low == pytest.approx(0.25 - 3.18244630528 * error)
    assert difference.high == pytest.approx(0.25 + 3.18244630528 * error)
    # t = sqrt 6 with three degrees of freedom: 1 - 2/pi (sqrt 2 / 3 + atan sqrt 2).
    assert difference.p_value == pytest.approx(1 - 2 / math.pi * (math.sqrt(2) / 3 + math.atan(math.sqrt(2))))


@given(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=30))
def test_p_value_and_interval_agree(differences: list[float]) -> None:
    assume(statistics.stdev(differences) > 1e-6)
    difference = paired_difference(differences)
    assert difference.low is not None
    assert difference.high is not None
    assert difference.p_value is not None
    assume(abs(difference.p_value - 0.05) > 1e-9)
    assert (difference.p_value < 0.05) == (difference.low > 0 or difference.high < 0)


@given(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=30))
def test_reversed_difference_has_the_opposite_sign(differences: list[float]) -> None:
    one, other = paired_difference(differences), paired_difference([-value for value in differences])
    assert other.value == -one.value
    assert (other.std_err, other.p_value) == (one.std_err, one.p_value)


def test_without_a_difference_p_values_are_uniform() -> None:
    rng = np.random.default_rng(22)
    task = rng.normal(0.0, 3.0, (RUNS, 15))
    one, other = (task + rng.normal(0.0, 1.0, task.shape) for _ in range(2))
    chances = np.array([paired_difference(differences).p_value for differences in one - other])
    counts, _ = np.histogram(chances, bins=10, range=(0, 1))
    assert counts.sum() == RUNS
    assert all(150 < count < 250 for count in counts)
    assert 0.035 < np.mean(chances < 0.05) < 0.065


def test_small_difference_on_the_same_tasks_is_significant() -> None:
    rng = np.random.default_rng(23)
    task = rng.normal(0.0, 3.0, 100)
    before, after = task + rng.normal(0.0, 0.2, 100), task + 0.3 + rng.normal(0.0, 0.2, 100)
    difference = paired_difference(after - before)
    assert difference.p_value is not None
    assert difference.p_value < 1e-6
    assert difference.value == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize("value", [0.5, -0.5, 0.1])
def test_equal_differences_get_a_sign_test_and_no_interval(value: float) -> None:
    assert paired_difference([value] * 6) == (value, 0.0, None, None, 2 / 2**6)
    assert paired_difference([0.0] * 6).p_value == 1.0


@pytest.mark.parametrize("differences", [[], [0.5]])
def test_difference_on_fewer_than_two_tasks_is_not_tested(differences: list[float]) -> None:
    assert paired_difference(differences)[1:] == (None, None, None, None)
