from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import NeMoGymResponseUsage, accumulate_response_usage, add_usage

USAGE: dict[str, Any] = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 7},
    "total_tokens": 30,
}


def usage(**changed: Any) -> NeMoGymResponseUsage:
    return NeMoGymResponseUsage.model_validate({**USAGE, **changed})


def dumped(total: NeMoGymResponseUsage | None) -> dict[str, Any]:
    assert total is not None
    return total.model_dump()


def test_usage_is_summed_field_by_field_with_its_details() -> None:
    assert dumped(accumulate_response_usage(usage(), usage())) == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 6},
        "output_tokens": 40,
        "output_tokens_details": {"reasoning_tokens": 14},
        "total_tokens": 60,
    }


def test_missing_usage_adds_nothing() -> None:
    assert accumulate_response_usage(None, None) is None
    assert dumped(accumulate_response_usage(usage(), None)) == USAGE
    assert dumped(accumulate_response_usage(None, usage())) == USAGE


def test_the_sum_neither_changes_nor_shares_its_arguments() -> None:
    one, other = usage(), usage()
    summed = accumulate_response_usage(one, None)
    accumulate_response_usage(one, other)
    assert dumped(one) == dumped(other) == USAGE
    assert summed is not one
    assert summed is not None and summed.input_tokens_details is not one.input_tokens_details


def test_optional_token_counts_are_summed() -> None:
    one = usage(cost=0.25, input_tokens_details={"cached_tokens": 1, "audio": {"seconds": 2}}, cached=True)
    other = usage(cost=0.5, searches=1, input_tokens_details={"audio": {"seconds": 3}}, tier="flex")
    total = dumped(accumulate_response_usage(one, other))
    assert (total["cost"], total["searches"], total["cached"], total["tier"]) == (0.75, 1, True, "flex")
    assert total["input_tokens_details"] == {"cached_tokens": 1, "audio": {"seconds": 5}}


def test_null_details_count_as_zero() -> None:
    one = usage(input_tokens_details=None, output_tokens_details={"reasoning_tokens": None})
    total = dumped(accumulate_response_usage(one, usage()))
    assert total["input_tokens_details"] == {"cached_tokens": 3}
    assert total["output_tokens_details"] == {"reasoning_tokens": 7}
    assert dumped(accumulate_response_usage(usage(), one)) == total


USAGES: list[dict[str, Any]] = [
    USAGE,
    {},
    {**USAGE, "cost": 0.5, "searches": 1, "tier": "flex"},
    {**USAGE, "total_tokens": "30"},
    {**USAGE, "input_tokens": 10.0, "cost": None},
    {**USAGE, "input_tokens_details": None},
    {**USAGE, "input_tokens_details": {}, "output_tokens_details": {"reasoning_tokens": None}},
    {**USAGE, "input_tokens_details": {"cached_tokens": True, "audio": {"seconds": 2}}},
]


@pytest.mark.parametrize("one", USAGES)
@pytest.mark.parametrize("other", USAGES)
def test_usages_in_dicts_have_the_same_sum(one: dict[str, Any], other: dict[str, Any]) -> None:
    models = [NeMoGymResponseUsage.model_validate(each) for each in (one, other)]
    assert add_usage(add_usage(None, one), other) == dumped(accumulate_response_usage(*models))


@pytest.mark.parametrize("usage", [{"input_tokens": "many"}, {**USAGE, "total_tokens": None}, [], "none"])
def test_usage_in_a_dict_is_validated(usage: Any) -> None:
    with pytest.raises(ValidationError):
        add_usage(None, usage)
