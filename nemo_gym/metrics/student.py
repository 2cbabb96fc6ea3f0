"""Student's t distribution, for intervals and tests of a mean over few tasks."""

import math
from functools import lru_cache

from nemo_gym.metrics.beta import incomplete_beta

_FAR = 1e150
_NORMAL_FROM = 1e9
"""Above this number of degrees of freedom, it equals the normal distribution in float precision."""


def two_sided_p(t: float, freedom: float) -> float:
    """The probability of a value at least as far from 0 as `t`."""
    if abs(t) > _FAR:
        return 0.0
    if freedom > _NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2))
    total = freedom + t * t
    if abs(t) < 1:  # here the probability is near 1, and its complement is more precise
        return 1.0 - incomplete_beta(0.5, freedom / 2, t * t / total)
    return incomplete_beta(freedom / 2, 0.5, freedom / total)


@lru_cache(maxsize=1024)
def critical_t(freedom: float, confidence: float = 0.95) -> float:
    """Half the width of the two-sided interval of this confidence, in standard errors."""
    rest = 1.0 - confidence
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > rest:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if two_sided_p(middle, freedom) > rest else (low, middle)
    return high
