"""Student's t distribution: what a mean of few tasks says about the mean of all."""

import math
from functools import lru_cache

from nemo_gym.metrics.beta import incomplete_beta

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
        return 1.0 - incomplete_beta(0.5, freedom / 2, t * t / total)
    return incomplete_beta(freedom / 2, 0.5, freedom / total)


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
