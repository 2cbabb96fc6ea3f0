"""Both rollout implementations take all arguments of `RolloutManager`, and no others."""

import inspect
from typing import Any

import pytest

from nemo_rl.experience.gym_rollout import AsyncNemoGymRolloutImpl
from nemo_rl.experience.ignored_arguments import ONLY_GYM, ONLY_NATIVE
from nemo_rl.experience.native_rollout import AsyncRolloutImpl
from tests.support.gym_handles import CONFIG

pytestmark = pytest.mark.torch

REQUIRED: dict[str, Any] = {
    "tokenizer": None,
    "task_to_env": {},
    "num_generations_per_prompt": 1,
    "max_seq_len": 8,
    "policy_generation": None,
    "generation_config": CONFIG,
}
BOTH: list[Any] = [AsyncRolloutImpl, AsyncNemoGymRolloutImpl]


def parameters(implementation: type) -> set[str]:
    return set(inspect.signature(implementation).parameters) - {"kwargs"}


def test_arguments_of_the_other_implementation_are_ignored() -> None:
    native, gym = parameters(AsyncRolloutImpl), parameters(AsyncNemoGymRolloutImpl)
    assert (native - gym, gym - native) == (ONLY_NATIVE, ONLY_GYM)
    everything = {**REQUIRED, "env_concurrency": 2, "mask_env_flagged_samples": False, "stats": None}
    for implementation in BOTH:
        implementation(**everything)


@pytest.mark.parametrize("implementation", BOTH)
def test_unknown_argument_is_an_error_that_lists_the_known_ones(implementation: Any) -> None:
    with pytest.raises(TypeError) as raised:
        implementation(**REQUIRED, max_rollout_turn=3)
    message, _, known = str(raised.value).partition("; known: ")
    assert message == f"{implementation.__name__}: unknown argument 'max_rollout_turn'"
    assert set(known.split(", ")) == parameters(AsyncRolloutImpl) | parameters(AsyncNemoGymRolloutImpl)
