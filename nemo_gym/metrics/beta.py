"""The beta distribution: what counts of successes say about their rate."""

import math

_TINY = 1e-300
_ENOUGH = 1e-15
_MOST_STEPS = 500
_HALVINGS = 200


def exact_interval(rate: float, size: float, confidence: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a rate that was seen in so many trials, whole or not."""
    tail, seen = (1 - confidence) / 2, rate * size
    low = beta_quantile(tail, seen, size - seen + 1) if rate > 0 else 0.0
    high = beta_quantile(1 - tail, seen + 1, size - seen) if rate < 1 else 1.0
    return low, high


def beta_quantile(chance: float, a: float, b: float) -> float:
    """The value below which a beta variable stays with this chance."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if incomplete_beta(a, b, middle) < chance else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly the mirrored one does not
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
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
