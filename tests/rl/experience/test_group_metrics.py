"""Statistics and percentiles, from which group metrics are computed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_rl.experience.group_metrics import pct, stats

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=20)


def test_m1_statistics_follow_the_published_formulas() -> None:
    assert stats([1, 0, 0, 1], 4, "r") == {
        "r/mean": 0.5,
        "r/max": 1,
        "r/min": 0,
        "r/median": 0.5,
        "r/stddev": 0.5773502691896257,
        "r/histogram": {"values": [1, 0, 0, 1]},
    }


def test_mean_divides_by_the_size_of_the_group() -> None:
    assert stats([4.0], 2, "steps")["steps/mean"] == 2.0
    assert math.isnan(stats([4.0], 2, "steps")["steps/stddev"])


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [([1, 2, 3, 4], 95, 4.0), ([1, 2, 3, 4], 50, 3.0), (range(1, 101), 95, 96.0), ([], 95, 0.0)],
)
def test_m1_percentiles_follow_the_published_formula(values: list[int], p: int, expected: float) -> None:
    assert pct(values, p) == expected


@given(NUMBERS, st.integers(0, 100))
def test_a_percentile_is_one_of_the_values(values: list[float], p: int) -> None:
    assert pct(values, p) in (values or [0.0])


@given(NUMBERS.filter(len))
def test_order_does_not_change_statistics(values: list[float]) -> None:
    one, other = stats(values, len(values), "x"), stats(values[::-1], len(values), "x")
    for kind in ("max", "min", "median"):
        assert one[f"x/{kind}"] == other[f"x/{kind}"]
    assert one["x/min"] <= one["x/median"] <= one["x/max"]
