"""Native groups in which something fails or takes too long."""

import asyncio
import math
import threading
from typing import Any

import pytest
import torch

from nemo_gym.http import ClientResponse, EndpointError
from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.experience.failures import (
    GenerationUnavailable,
    RolloutConfigurationError,
    RolloutDataFailure,
    RolloutFailure,
    RolloutStall,
    RolloutTimeout,
)
from nemo_rl.experience.interfaces import GroupIntegrity
from nemo_rl.experience.message_log import token_loss_mask
from nemo_rl.experience.native_rollout import AsyncRolloutImpl
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutTimeouts
from nemo_rl.experience.rollout_manager import RolloutManager
from tests.support.native_rollouts import managed, message, rollouts, run, sample, tokens
from tests.support.scripted_policy import ScriptedEnvironment, ScriptedGeneration, Step, Turn
from tests.support.toy_tokenizer import ToyTokenizer
from tests.support.waiting import until

pytestmark = pytest.mark.torch


def test_n10_failed_generation_fails_the_group_and_names_the_member() -> None:
    script = [[Turn([21])], [Turn([], error=ConnectionError("gone"))]]
    with pytest.raises(GenerationUnavailable, match="prompt_idx=5 traj_idx=1") as failed:
        run(script, [Step("31", 0, True)], sample(idx=5))
    assert isinstance(failed.value.__cause__, ConnectionError)


def test_generation_that_fails_because_of_its_input_is_a_data_failure() -> None:
    with pytest.raises(RolloutDataFailure, match=r"prompt_idx=0 traj_idx=0: .*bad token"):
        run([[Turn([], error=ValueError("bad token"))]], [Step()])


def test_backend_without_output_is_a_failure() -> None:
    class Silent:
        async def generate_async(self, data: Any, greedy: bool = False) -> Any:
            for nothing in ():
                yield nothing

    impl = rollouts(Silent(), ScriptedEnvironment([Step()]))
    with pytest.raises(GenerationUnavailable, match="no output"):
        asyncio.run(impl.run_rollout(sample()))


def test_error_of_an_environment_is_unchanged_and_has_a_note_that_names_the_member() -> None:
    error = LookupError("no such page")
    with pytest.raises(LookupError) as failed:
        run([[Turn([21])]], [Step(error=error)], sample(idx=5))
    assert failed.value is error and error.args == ("no such page",)
    assert "prompt_idx=5 traj_idx=0" in "".join(error.__notes__)


def test_environment_that_raises_stop_iteration_fails_its_group() -> None:
    error = StopIteration()
    impl = rollouts(ScriptedGeneration([[Turn([21])]]), ScriptedEnvironment([Step(error=error)]))
    with pytest.raises(RuntimeError) as failed:
        asyncio.run(asyncio.wait_for(impl.run_rollout(sample()), 30))
    assert failed.value.__cause__ is error


def test_nan_as_log_probability_is_a_failure() -> None:
    with pytest.raises(RolloutFailure, match=r"prompt_idx=0 traj_idx=0.*NaN"):
        run([[Turn([21, 22], [-0.5, math.nan])]], [Step(terminated=True)])


@pytest.mark.parametrize("off", [-3, +99])
def test_impossible_sequence_lengths_are_a_failure(off: int) -> None:
    class Miscounting(ScriptedGeneration):
        async def generate_async(self, data: Any, greedy: bool = False) -> Any:
            async for index, output in super().generate_async(data, greedy):
                output["unpadded_sequence_lengths"] = output["unpadded_sequence_lengths"] + off
                yield index, output

    impl = rollouts(Miscounting([[Turn([21, 22])]]), ScriptedEnvironment([Step(terminated=True)]))
    with pytest.raises(RolloutFailure, match=r"prompt_idx=0 traj_idx=0.*unpadded_sequence_lengths"):
        asyncio.run(impl.run_rollout(sample()))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_is_a_data_failure(reward: float) -> None:
    with pytest.raises(RolloutDataFailure, match=f"prompt_idx=0 traj_idx=0.*the reward {reward}"):
        run([[Turn([21])]], [Step(reward=reward, terminated=True)])


def test_rewards_by_name_are_refused() -> None:
    class Several(ScriptedEnvironment):
        def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            return super().step(message_log_batch, metadata)._replace(rewards={"style": torch.ones(1)})

    impl = rollouts(ScriptedGeneration([[Turn([21])]]), Several([Step()]))
    with pytest.raises(AssertionError, match="dict"):
        asyncio.run(impl.run_rollout(sample()))


def test_prompt_without_task_name_or_idx_is_a_key_error() -> None:
    for key in ("task_name", "idx"):
        given = sample()
        del given[key]
        with pytest.raises(KeyError, match=key):
            run([[Turn([21])]], [Step()], given)


def test_error_names_a_task_without_an_environment() -> None:
    with pytest.raises(ValueError, match="'chess'"):
        run([[Turn([21])]], [Step()], sample(task_name="chess"))


def test_without_log_probabilities_nothing_is_trained_on_and_a_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record, _, _ = run([[Turn([21, 2])]], [Step(terminated=True)], with_logprobs=False)
    assert not token_loss_mask(record.completions[0].message_log).any()
    assert "no log-probabilities" in caplog.text


def test_manager_warns_once_about_a_backend_without_log_probabilities(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(manager: RolloutManager) -> None:
        await manager.run_rollout(sample())
        await manager.run_rollout(sample())

    for times in (1, 2):
        policy = ScriptedGeneration([[Turn([21]), Turn([22])]] * 4, with_logprobs=False)
        steps = ScriptedEnvironment([Step("31"), Step("32", terminated=True)])
        asyncio.run(play(managed(policy, steps, 2)))
        assert sum("no log-probabilities" in record.getMessage() for record in caplog.records) == times


def test_overridden_generate_response_gets_the_published_arguments() -> None:
    class Own(AsyncRolloutImpl):
        async def _generate_response(self, message_log: Any, stop_strings: Any) -> Any:  # type: ignore[override]
            generated, lengths, gen_metrics = await super()._generate_response(message_log, stop_strings)
            return {**generated, "content": "own"}, lengths, gen_metrics

    tokenizer: Any = ToyTokenizer()
    impl = Own(
        tokenizer,
        {"toy": ScriptedEnvironment([Step(terminated=True)])},
        1,
        16,
        ScriptedGeneration([[Turn([21])]]),
    )
    record = asyncio.run(impl.run_rollout(sample()))
    assert record.completions[0].message_log[1]["content"] == "own"


def test_other_members_are_cancelled_before_a_failure_is_raised() -> None:
    ended: list[str] = []

    class Slow:
        def __init__(self) -> None:
            self.begun = 0

        async def generate_async(self, data: Any, greedy: bool = False) -> Any:
            self.begun += 1
            if self.begun == 3:
                raise ConnectionError("gone")
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)  # the cleanup takes some time
                ended.append("cancelled")
            yield

    impl = rollouts(Slow(), ScriptedEnvironment([Step()]), 3)
    with pytest.raises(GenerationUnavailable):
        asyncio.run(impl.run_rollout(sample()))
    assert ended == ["cancelled", "cancelled"]


def test_cancelled_group_raises_cancelled_error_and_ends_its_members() -> None:
    async def play() -> list[Any]:
        forever = asyncio.Event()
        policy = ScriptedGeneration([[Turn([21], after=forever)]] * 2)
        impl = rollouts(policy, ScriptedEnvironment([Step()]), 2)
        group = asyncio.create_task(impl.run_rollout(sample()))
        await until(lambda: len(policy.requests) == 2)
        group.cancel()
        with pytest.raises(asyncio.CancelledError):
            await group
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(play()) == []


def test_members_of_a_cancelled_group_are_cancelled_once_and_clean_up() -> None:
    begun: list[int] = []
    cleaned_up: list[int] = []

    async def play() -> None:
        all_begun = asyncio.Event()

        class Tidy:
            async def generate_async(self, data: Any, greedy: bool = False) -> Any:
                number = len(begun)
                begun.append(number)
                if len(begun) == 3:
                    all_begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    for _ in range(10 * number):
                        await asyncio.sleep(0)
                    cleaned_up.append(number)
                yield

        group = asyncio.create_task(rollouts(Tidy(), ScriptedEnvironment([]), 3).run_rollout(sample()))
        await all_begun.wait()
        group.cancel()
        with pytest.raises(asyncio.CancelledError):
            await group

    asyncio.run(play())
    assert cleaned_up == begun == [0, 1, 2]


def test_turn_that_takes_too_long_raises_generation_unavailable() -> None:
    async def play() -> None:
        turns = [[Turn([21], after=asyncio.Event())]]
        limits = RolloutTimeouts(generation_s=0.02)
        impl = rollouts(ScriptedGeneration(turns), ScriptedEnvironment([Step()]), timeouts=limits)
        await impl.run_rollout(sample())

    with pytest.raises(GenerationUnavailable, match=r"longer than 0\.02 s") as failed:
        asyncio.run(play())
    assert isinstance(failed.value.__cause__, RolloutTimeout)


def test_slow_step_is_a_rollout_timeout_and_a_timeout_error_of_the_step_is_unchanged() -> None:
    class Slow(ScriptedEnvironment):
        async def step(self, message_log_batch: list[Any], metadata: list[Any]) -> Any:  # type: ignore[override]
            await asyncio.sleep(60)

    limits = RolloutTimeouts(env_s=0.02)
    impl = rollouts(ScriptedGeneration([[Turn([21])]]), Slow([Step()]), timeouts=limits)
    with pytest.raises(RolloutTimeout, match="step of the environment"):
        asyncio.run(impl.run_rollout(sample()))
    with pytest.raises(TimeoutError) as failed:
        run([[Turn([21])]], [Step(error=TimeoutError("its own"))], timeouts=RolloutTimeouts(env_s=60))
    assert str(failed.value) == "its own"


def test_rollout_that_adds_no_tokens_fails() -> None:
    with pytest.raises(RolloutDataFailure, match="2 turns in a row added no token"):
        run([[Turn([21]), *[Turn([])] * 9]], [Step("")], max_seq_len=99)


@pytest.mark.parametrize(
    ("last_turn", "last_step", "cap"),
    [
        (Turn([]), Step("", terminated=True), 9),
        (Turn([], truncated=True), Step(""), 9),
        (Turn([]), Step(""), 2),
    ],
)
def test_terminated_rollout_may_end_without_new_tokens(last_turn: Turn, last_step: Step, cap: int) -> None:
    record, _, _ = run([[Turn([]), last_turn]], [Step(""), last_step], max_rollout_turns=cap)
    assert record.rollout_metrics["total_turns"] == 2


@pytest.mark.parametrize(
    ("limit", "failure", "expected"),
    [
        ("rollout_s", RolloutTimeout, "the group of prompt_idx=3"),
        ("generation_s", GenerationUnavailable, "prompt_idx=3 traj_idx=0"),
    ],
)
def test_timeouts_of_the_manager_apply_to_its_groups(limit: str, failure: Any, expected: str) -> None:
    policy = ScriptedGeneration([[Turn([21], after=asyncio.Event())]])
    manager = managed(policy, ScriptedEnvironment([]), timeouts=RolloutTimeouts(**{limit: 0.02}))
    with pytest.raises(failure, match=expected):
        asyncio.run(asyncio.wait_for(manager.run_rollout(sample(idx=3)), 30))


def test_integrity_and_retry_delays_of_the_manager_apply_to_its_members() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    gone = Turn([], error=ConnectionError("gone"))
    manager = managed(
        ScriptedGeneration([[Turn([21])], [gone, gone], [gone, Turn([23])]]),
        ScriptedEnvironment([Step(terminated=True)]),
        3,
        integrity=GroupIntegrity("shrink", member_attempts=2),
        retry_policy=RolloutRetryPolicy(1, 1, 1, backoff_base_s=0.5),
        sleep=sleep,
    )
    record = asyncio.run(manager.run_rollout(sample()))
    assert [completion.generation_index for completion in record.completions] == [0, 2]
    assert list(record.failures) == [1] and waited == [0.5, 0.5]


def test_manager_allows_env_concurrency_steps_at_once() -> None:
    both_step = threading.Barrier(2, timeout=30)

    class Meeting(ScriptedEnvironment):
        def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            both_step.wait()
            return super().step(message_log_batch, metadata)

    policy = ScriptedGeneration([[Turn([21])], [Turn([22])]])
    manager = managed(policy, Meeting([Step(terminated=True)]), 2, env_concurrency=2)
    assert len(asyncio.run(manager.run_rollout(sample())).completions) == 2


def test_seed_of_the_manager_applies_to_its_turns() -> None:
    policies = [ScriptedGeneration([[Turn([21])]]) for _ in range(2)]
    done = [ScriptedEnvironment([Step(terminated=True)]) for _ in range(2)]
    asyncio.run(managed(policies[0], done[0], seed=7).run_rollout(sample()))
    asyncio.run(rollouts(policies[1], done[1], seed=7).run_rollout(sample()))
    assert policies[0].requests[0]["seeds"] == policies[1].requests[0]["seeds"]


def script_with_one_failure() -> list[list[Turn]]:
    return [[Turn([21])], [Turn([], error=ConnectionError("gone"))], [Turn([23])]]


def test_shrunk_group_has_the_members_that_succeeded() -> None:
    rules = GroupIntegrity(on_member_failure="shrink")
    record, _, _ = run(script_with_one_failure(), [Step(reward=1.0, terminated=True)], integrity=rules)
    assert [completion.generation_index for completion in record.completions] == [0, 2]
    assert list(record.failures) == [1] and "ConnectionError: gone" in record.failures[1]
    assert record.rollout_metrics["total_reward/mean"] == 1.0
    assert record.rollout_metrics["failed_members"] == 1


def test_masked_member_keeps_its_place_and_is_not_trained_on() -> None:
    rules = GroupIntegrity(on_member_failure="mask")
    record, _, _ = run(script_with_one_failure(), [Step(reward=1.0, terminated=True)], integrity=rules)
    assert [completion.generation_index for completion in record.completions] == [0, 1, 2]
    failed = record.completions[1]
    assert failed.failure is not None and "gone" in failed.failure
    assert not token_loss_mask(failed.message_log).any() and tokens(record, 1) == [[11, 12, 13]]
    assert record.rollout_metrics["total_reward/mean"] == 1.0


def test_group_with_too_few_members_fails() -> None:
    script = [[Turn([21])], [Turn([], error=ConnectionError("gone"))]]
    with pytest.raises(GenerationUnavailable, match="traj_idx=1"):
        run(script, [Step(terminated=True)], integrity=GroupIntegrity("shrink", min_members=2))


def test_member_is_retried_after_an_infrastructure_failure() -> None:
    script = [[Turn([], error=ConnectionError("gone")), Turn([21])], [Turn([22])]]
    rules = GroupIntegrity(member_attempts=2)
    policy = RolloutRetryPolicy(1, 1, 1, backoff_base_s=0.0)
    record, _, _ = run(script, [Step(terminated=True)], integrity=rules, retry_policy=policy)
    assert tokens(record)[1] == [21] and record.failures == {}


@pytest.mark.parametrize("rule", ["drop", "shrink", "mask"])
def test_terminal_failure_of_a_member_fails_the_group_under_every_rule(rule: Any) -> None:
    stall = RolloutStall("nothing moves")
    stall.__cause__ = ConnectionError("gone")
    script = [[Turn([21])], [Turn([], error=stall)], [Turn([23])]]
    with pytest.raises(RolloutStall, match="nothing moves"):
        run(script, [Step(terminated=True)], integrity=GroupIntegrity(rule, member_attempts=2))


@pytest.mark.parametrize("rule", ["drop", "shrink", "mask"])
def test_backend_with_a_wrong_key_ends_the_run(rule: Any) -> None:
    refused = EndpointError(ClientResponse(401, (), b"Incorrect API key"))
    script = [[Turn([21])], [Turn([], error=refused)], [Turn([23])]]
    with pytest.raises(RolloutConfigurationError, match=r"traj_idx=1: .*Incorrect API key"):
        run(script, [Step(terminated=True)], integrity=GroupIntegrity(rule, member_attempts=2))


@pytest.mark.parametrize("ids", [[11], torch.tensor([[11]]), torch.tensor([11.0])])
def test_prompt_with_invalid_token_ids_is_refused_with_its_index(ids: Any) -> None:
    log = [message("user", 5), {"role": "user", "content": "11", "token_ids": ids}]
    with pytest.raises(ValueError, match=r"prompt_idx=5: token_ids of message 1 .*int64"):
        run([[Turn([21])]], [Step()], sample(idx=5, message_log=log))
