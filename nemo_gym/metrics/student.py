"""Student's t distribution: what a mean of few tasks says about the mean of all."""

import math
from functools import lru_cache

_TINY = 1e-300
_ENOUGH = 1e-15
_MOST_STEPS = 500
_FAR = 1e150
_NORMAL_FROM = 1e9
"""Degrees of freedom from which no float tells it from the normal distribution."""


def two_sided_p(t: float, freedom: float) -> float:
    """The chance of a value at least as far from 0 as this."""
    if abs(t) > _FAR:
        return 0.0
    if freedom > _NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2))
    total = freedom + t * t
    if abs(t) < 1:  # near 1 the chance of the opposite has more digits
        return 1.0 - _incomplete_beta(0.5, freedom / 2, t * t / total)
    return _incomplete_beta(freedom / 2, 0.5, freedom / total)


@lru_cache(maxsize=1024)
def critical_t(freedom: float, confidence: float = 0.95) -> float:
    """How many standard errors the two-sided interval of this confidence reaches to either side."""
    rest = 1.0 - confidence
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > rest:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if two_sided_p(middle, freedom) > rest else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly the mirrored one does not
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Its continued fraction, evaluated from the front (Lentz)."""
    numerator, denominator = 1.0, _away_from_zero(1.0 - (a + b) * x / (a + 1))
    value = denominator = 1.0 / denominator
    for step in range(1, _MOST_STEPS):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            denominator = 1.0 / _away_from_zero(1.0 + term * denominator)
            numerator = _away_from_zero(1.0 + term / numerator)
            change = denominator * numerator
            value *= change
        if abs(change - 1.0) < _ENOUGH:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
