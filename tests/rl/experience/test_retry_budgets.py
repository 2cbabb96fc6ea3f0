"""Retry budgets, delays, time limits and counters."""

import asyncio

import pytest

from nemo_rl.experience.failures import RolloutTimeout
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutStats, RolloutTimeouts, within


def test_b1_delays_double_up_to_the_maximum() -> None:
    policy = RolloutRetryPolicy(6, 1, 1, backoff_base_s=0.5, max_backoff_s=3)
    assert [policy.backoff_s(failures) for failures in range(1, 6)] == [0.5, 1, 2, 3, 3]
    assert policy.backoff_s(10_000) == 3


def test_the_three_budgets_are_required_and_at_least_one() -> None:
    with pytest.raises(TypeError):
        RolloutRetryPolicy()  # type: ignore[call-arg]  # the arguments are missing on purpose
    for name in ("max_infra_attempts", "max_data_attempts", "max_gym_row_attempts"):
        budgets = {"max_infra_attempts": 1, "max_data_attempts": 1, "max_gym_row_attempts": 1, name: 0}
        with pytest.raises(ValueError, match=name):
            RolloutRetryPolicy(**budgets)
    single = RolloutRetryPolicy.single_attempt()
    assert (single.max_infra_attempts, single.max_data_attempts, single.max_gym_row_attempts) == (1, 1, 1)


def test_default_policy_has_delays_of_1_to_30_seconds_and_loses_no_prompts() -> None:
    policy = RolloutRetryPolicy(5, 2, 3)
    assert (policy.backoff_base_s, policy.max_backoff_s) == (1.0, 30.0)
    assert (policy.max_skipped_prompts, policy.max_consecutive_dropped_prompts) == (0, 0)
    assert RolloutRetryPolicy.single_attempt() == RolloutRetryPolicy(1, 1, 1)


@pytest.mark.parametrize("name", ["rollout_s", "generation_s", "env_s"])
def test_timeout_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be more than 0"):
        RolloutTimeouts(**{name: 0})


def test_expired_limit_names_the_operation_and_an_inner_timeout_error_is_unchanged() -> None:
    async def late() -> None:
        async with within(0.01, "the step"):
            await asyncio.sleep(60)

    async def own() -> None:
        async with within(60, "the step"):
            raise TimeoutError("its own")

    with pytest.raises(RolloutTimeout, match=r"the step took longer than 0\.01 s"):
        asyncio.run(late())
    with pytest.raises(TimeoutError, match="its own"):
        asyncio.run(own())


def test_counts_are_floats_with_the_published_keys() -> None:
    stats = RolloutStats()
    stats.drop("GenerationUnavailable")
    stats.drop("GenerationUnavailable")
    stats.commit()
    stats.drop("RolloutTimeout")
    stats.redispatches["RolloutTimeout"] += 3
    metrics = stats.as_metrics()
    assert metrics == {
        "rollout/committed_total": 1.0,
        "rollout/skipped_total": 0.0,
        "rollout/redispatch_total": 3.0,
        "rollout/redispatch_total/RolloutTimeout": 3.0,
        "rollout/data_retry_total": 0.0,
        "rollout/data_failures_total": 0.0,
        "rollout/gym_row_redispatch_total": 0.0,
        "rollout/infra_drops_total": 3.0,
        "rollout/infra_drops_total/GenerationUnavailable": 2.0,
        "rollout/infra_drops_total/RolloutTimeout": 1.0,
        "rollout/max_consecutive_infra_drops": 2.0,
    }
    assert all(type(value) is float for value in metrics.values())
