"""Faults come as often as they are asked for, and in every run to the same requests."""

from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from responses_api_models.replay_model.faults import Dice, Fault, FaultsConfig, spoiled
from responses_api_models.replay_model.tests.rollouts import called, said, tokens

ALL = {fault.value: 0.05 for fault in Fault}


def test_every_fault_has_its_share() -> None:
    dice = Dice(FaultsConfig.model_validate({**ALL, "hang": 0.2}))
    thrown = Counter(dice.throw(key, 0, 0) for key in range(20_000))
    assert set(thrown) == {None, *Fault}
    for fault, count in thrown.items():
        expected = 0.45 if fault is None else 0.2 if fault is Fault.HANG else 0.05
        assert count / 20_000 == pytest.approx(expected, abs=0.01)


def test_without_rates_nothing_fails_and_with_all_of_it_everything_does() -> None:
    assert {Dice(FaultsConfig()).throw(key, 0, 0) for key in range(1000)} == {None}
    certain = Dice(FaultsConfig(rate_limited=1.0))
    assert {certain.throw(key, 0, 0) for key in range(1000)} == {Fault.RATE_LIMITED}


def test_same_seed_gives_the_same_faults_and_another_gives_others() -> None:
    def thrown(seed: int) -> list[Fault | None]:
        dice = Dice(FaultsConfig.model_validate({**ALL, "seed": seed}))
        return [dice.throw(key, 1, 2) for key in range(200)]

    assert thrown(1) == thrown(1) != thrown(2)


def test_request_that_is_sent_again_has_a_new_chance() -> None:
    dice = Dice(FaultsConfig(server_error=0.5))
    for key in range(50):
        assert None in {dice.throw(key, 0, number) for number in range(30)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"hang": 0.6, "slow": 0.5},
            r"the rates add up to 1.1 \(hang 0.6, slow 0.5\); lower them to 1 or less",
        ),
        ({"hang": 1.5}, "hang"),
        ({"slow": -0.1}, "slow"),
        ({"slow_s": -1}, "slow_s"),
        ({"hangs": 0.1}, "hangs"),
    ],
)
def test_rates_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FaultsConfig.model_validate(settings)


def test_rates_may_add_up_to_one() -> None:
    FaultsConfig.model_validate({**{fault.value: 0.1 for fault in Fault}, "slow": 0.3})


def test_log_probs_get_a_nan_and_the_recorded_answer_stays() -> None:
    item = said("hi", **tokens(3, 2))
    answer = {"output": [called("a"), item]}
    nan = spoiled(answer, Fault.NAN_LOG_PROBS)
    assert nan == {"output": [called("a"), {**item, "generation_log_probs": [None, -0.5]}]}
    assert spoiled(answer, Fault.EMPTY_OUTPUT) == {"output": []}
    assert spoiled(answer, Fault.SLOW) is answer
    assert item == said("hi", **tokens(3, 2))
