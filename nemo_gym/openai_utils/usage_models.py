"""Token counts of a model response, and their sum over the calls of a rollout."""

from typing import Any

from pydantic import Field

from .wire_model import WireModel

_COUNTS = (int, float)
"""Compared exactly: a bool is not a count."""


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
    """The sum of both, field by field. A count that only one of them has is kept; neither is changed."""
    if total is None and additional is None:
        return None
    counts = _sum(_fields(total), _fields(additional))
    return NeMoGymResponseUsage.model_validate(counts)


def add_usage(total: dict[str, Any] | None, additional: dict[str, Any]) -> dict[str, Any]:
    """`accumulate_response_usage` for dicts: `additional` is validated, neither is changed."""
    if not _is_valid(additional):
        additional = NeMoGymResponseUsage.model_validate(additional).model_dump()
    return _sum(total, additional) if total else dict(additional)


def _is_valid(usage: object) -> bool:
    """Whether validation would change nothing: true of all usages that our own model servers send."""
    if not isinstance(usage, dict):
        return False
    given, generated = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    return (
        type(usage.get("input_tokens")) is int
        and type(usage.get("output_tokens")) is int
        and type(usage.get("total_tokens")) is int
        and isinstance(given, dict)
        and type(given.get("cached_tokens")) is int
        and isinstance(generated, dict)
        and type(generated.get("reasoning_tokens")) is int
    )


def _fields(usage: NeMoGymResponseUsage | None) -> dict[str, Any]:
    return {} if usage is None else usage.model_dump()


def _sum(total: dict[str, Any], additional: dict[str, Any]) -> dict[str, Any]:
    summed = dict(total)
    for key, value in additional.items():
        before = total.get(key)
        if type(before) in _COUNTS and type(value) in _COUNTS:
            summed[key] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            summed[key] = _sum(before, value)
        elif before is None or value is not None:
            summed[key] = value
    return summed
