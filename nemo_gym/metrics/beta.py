"""The beta distribution, for exact intervals of a success rate."""

import math

_TINY = 1e-300
_TOLERANCE = 1e-15
_MAX_STEPS = 500
_HALVINGS = 200


def exact_interval(rate: float, size: float, confidence: float) -> tuple[float, float]:
    """The Clopper-Pearson interval of a success rate observed in `size` trials, which may be a fraction."""
    tail, successes = (1 - confidence) / 2, rate * size
    low = beta_quantile(tail, successes, size - successes + 1) if rate > 0 else 0.0
    high = beta_quantile(1 - tail, successes + 1, size - successes) if rate < 1 else 1.0
    return low, high


def beta_quantile(probability: float, a: float, b: float) -> float:
    """The value that a beta variable stays below with this probability."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if incomplete_beta(a, b, middle) < probability else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # here the fraction converges slowly, but the mirrored one converges fast
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, evaluated from the front (Lentz)."""
    numerator, denominator = 1.0, _away_from_zero(1.0 - (a + b) * x / (a + 1))
    value = denominator = 1.0 / denominator
    for step in range(1, _MAX_STEPS):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            denominator = 1.0 / _away_from_zero(1.0 + term * denominator)
            numerator = _away_from_zero(1.0 + term / numerator)
            change = denominator * numerator
            value *= change
        if abs(change - 1.0) < _TOLERANCE:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
