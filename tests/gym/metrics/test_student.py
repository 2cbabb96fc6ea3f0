import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.student import critical_t, two_sided_p

FREEDOM = st.integers(1, 2000)
T = st.floats(0, 40)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (10, 2.22814), (30, 2.04227), (1000, 1.96234)]
)
def test_critical_values_match_the_tables(freedom: int, t: float) -> None:
    assert critical_t(freedom) == pytest.approx(t, rel=5e-6)


@pytest.mark.parametrize(
    ("freedom", "confidence", "t"), [(1, 0.5, 1.0), (5, 0.99, 4.03214), (120, 0.9, 1.65765)]
)
def test_critical_values_of_other_confidences_match_the_tables(
    freedom: int, confidence: float, t: float
) -> None:
    assert critical_t(freedom, confidence) == pytest.approx(t, rel=5e-6)


def test_many_degrees_of_freedom_give_the_normal_distribution() -> None:
    assert critical_t(1e12) == pytest.approx(1.959963985, rel=1e-9)
    assert two_sided_p(3.0, 1e12) == pytest.approx(math.erfc(3 / math.sqrt(2)), rel=1e-12)


@settings(deadline=None)
@given(st.floats(0.5, 1e7), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_p_value_of_a_critical_value_matches_its_confidence(freedom: float, confidence: float) -> None:
    assert two_sided_p(critical_t(freedom, confidence), freedom) == pytest.approx(1 - confidence, rel=1e-6)


def density(x: np.ndarray, freedom: float) -> np.ndarray:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi * freedom) / 2
    return np.exp(scale - (freedom + 1) / 2 * np.log1p(x * x / freedom))


def simpson(t: float, freedom: float, steps: int = 4000) -> float:
    """The area under the density from 0 to t."""
    heights = density(np.linspace(0.0, t, steps + 1), freedom)
    weighted = heights[0] + 4 * heights[1::2].sum() + 2 * heights[2:-1:2].sum() + heights[-1]
    return float(weighted * t / steps / 3)


@given(FREEDOM, T)
def test_p_value_agrees_with_the_area_under_the_density(freedom: int, t: float) -> None:
    assert two_sided_p(t, freedom) == pytest.approx(1 - 2 * simpson(t, freedom), abs=1e-9)


@given(st.floats(1e-12, 1e100))
def test_p_value_with_one_or_two_degrees_of_freedom_is_exact(t: float) -> None:
    root = math.sqrt(2 + t * t)
    assert two_sided_p(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-12)
    assert two_sided_p(t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-12)


def test_tiny_p_value_is_not_rounded_to_zero() -> None:
    assert two_sided_p(30.4736, 10_000) == pytest.approx(4.04e-195, rel=0.01)


@given(FREEDOM, T)
def test_p_value_is_symmetric(freedom: int, t: float) -> None:
    assert two_sided_p(-t, freedom) == two_sided_p(t, freedom)


@given(FREEDOM, T, T)
def test_p_value_decreases_with_the_distance_from_zero(freedom: int, one: float, other: float) -> None:
    near, far = sorted((one, other))
    assert 0 <= two_sided_p(far, freedom) <= two_sided_p(near, freedom) * (1 + 1e-11) <= 1 + 1e-11


@given(st.integers(1, 500), st.integers(1, 500), st.floats(1, 20))
def test_p_value_decreases_with_the_number_of_tasks(one: int, other: int, t: float) -> None:
    few, many = sorted((one, other))
    assert two_sided_p(t, many) <= two_sided_p(t, few) * (1 + 1e-11)


def test_p_value_of_zero_is_one_and_of_infinity_zero() -> None:
    assert two_sided_p(0.0, 5) == 1.0
    assert two_sided_p(math.inf, 5) == two_sided_p(-math.inf, 5) == 0.0
