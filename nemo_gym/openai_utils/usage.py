"""Token counts of a response, and their sum over the calls of a rollout."""

from typing import Any

from pydantic import Field

from .base import WireModel


class NeMoGymResponseInputTokensDetails(WireModel):
    cached_tokens: int | None = 0


class NeMoGymResponseOutputTokensDetails(WireModel):
    reasoning_tokens: int | None = 0


class NeMoGymResponseUsage(WireModel):
    input_tokens: int = 0
    input_tokens_details: NeMoGymResponseInputTokensDetails | None = Field(
        default_factory=NeMoGymResponseInputTokensDetails
    )
    output_tokens: int = 0
    output_tokens_details: NeMoGymResponseOutputTokensDetails | None = Field(
        default_factory=NeMoGymResponseOutputTokensDetails
    )
    total_tokens: int = 0


def accumulate_response_usage(
    total: NeMoGymResponseUsage | None, additional: NeMoGymResponseUsage | None
) -> NeMoGymResponseUsage | None:
    """The sum of both, field by field, counts that only one of them has included; both stay as they are."""
    if total is None and additional is None:
        return None
    counts = _sum(_fields(total), _fields(additional))
    return NeMoGymResponseUsage.model_validate(counts)


def _fields(usage: NeMoGymResponseUsage | None) -> dict[str, Any]:
    return {} if usage is None else usage.model_dump()


def _sum(total: dict[str, Any], additional: dict[str, Any]) -> dict[str, Any]:
    summed = dict(total)
    for key, value in additional.items():
        summed[key] = _sum_values(total.get(key), value)
    return summed


def _sum_values(total: object, additional: object) -> object:
    if isinstance(total, dict) and isinstance(additional, dict):
        return _sum(total, additional)
    if _is_count(total) and _is_count(additional):
        return total + additional  # type: ignore[operator]  # both are counts: _is_count
    return total if additional is None else additional


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
