"""Faults occur at the configured rates, for the same requests in every run."""

from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from responses_api_models.replay_model.faults import Dice, Fault, FaultsConfig, with_fault
from responses_api_models.replay_model.tests.rollouts import called, said, tokens

ALL = {fault.value: 0.05 for fault in Fault}


def test_every_fault_occurs_at_its_rate() -> None:
    dice = Dice(FaultsConfig.model_validate({**ALL, "hang": 0.2}))
    thrown = Counter(dice.throw(digest, 0, 0) for digest in range(20_000))
    assert set(thrown) == {None, *Fault}
    for fault, count in thrown.items():
        expected = 0.45 if fault is None else 0.2 if fault is Fault.HANG else 0.05
        assert count / 20_000 == pytest.approx(expected, abs=0.01)


def test_rate_zero_means_never_and_rate_one_always() -> None:
    assert {Dice(FaultsConfig()).throw(digest, 0, 0) for digest in range(1000)} == {None}
    certain = Dice(FaultsConfig(rate_limited=1.0))
    assert {certain.throw(digest, 0, 0) for digest in range(1000)} == {Fault.RATE_LIMITED}


def test_faults_depend_on_the_seed() -> None:
    def thrown(seed: int) -> list[Fault | None]:
        dice = Dice(FaultsConfig.model_validate({**ALL, "seed": seed}))
        return [dice.throw(digest, 1, 2) for digest in range(200)]

    assert thrown(1) == thrown(1) != thrown(2)


def test_retried_request_may_succeed() -> None:
    dice = Dice(FaultsConfig(server_error=0.5))
    for digest in range(50):
        assert None in {dice.throw(digest, 0, number) for number in range(30)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"hang": 0.6, "slow": 0.5},
            r"the rates add up to 1.1 \(hang 0.6, slow 0.5\); their sum must be 1 or less",
        ),
        ({"hang": 1.5}, "hang"),
        ({"slow": -0.1}, "slow"),
        ({"slow_s": -1}, "slow_s"),
        ({"hangs": 0.1}, "hangs"),
    ],
)
def test_invalid_rates_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FaultsConfig.model_validate(settings)


def test_rates_may_add_up_to_one() -> None:
    FaultsConfig.model_validate({**{fault.value: 0.1 for fault in Fault}, "slow": 0.3})


def test_log_probs_get_a_nan_and_the_recorded_response_is_not_changed() -> None:
    item = said("hi", **tokens(3, 2))
    response = {"output": [called("a"), item]}
    nan = with_fault(response, Fault.NAN_LOG_PROBS)
    assert nan == {"output": [called("a"), {**item, "generation_log_probs": [None, -0.5]}]}
    assert with_fault(response, Fault.EMPTY_OUTPUT) == {"output": []}
    assert with_fault(response, Fault.SLOW) is response
    assert item == said("hi", **tokens(3, 2))
