"""Native rollouts, turn by turn; the numbered examples are those of the published behaviour."""

import asyncio
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.experience.failures import GenerationUnavailable, RolloutDataFailure, RolloutTimeout
from nemo_rl.experience.interfaces import GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.message_log import flat_token_ids, token_loss_mask
from nemo_rl.experience.native_rollout import AsyncRolloutImpl
from nemo_rl.experience.retry import RolloutRetryPolicy, RolloutTimeouts
from tests.support.scripted_policy import ScriptedEnvironment, ScriptedGeneration, Step, Turn
from tests.support.toy_tokenizer import ToyTokenizer

pytestmark = pytest.mark.torch


def message(role: str, *token_ids: int) -> dict[str, Any]:
    text = " ".join(map(str, token_ids))
    return {"role": role, "content": text, "token_ids": torch.tensor(token_ids, dtype=torch.int64)}


def sample(*prompt: int, idx: int = 0, **more: Any) -> Any:
    log = [message("user", *(prompt or (11, 12, 13)))]
    given = {"message_log": log, "length": len(prompt), "extra_env_info": {"step": 0}, "idx": idx}
    return {**given, "loss_multiplier": 1.0, "task_name": "toy", **more}


def rollouts(
    policy: Any, environment: Any, n: int = 1, max_seq_len: int = 16, **more: Any
) -> AsyncRolloutImpl:
    tokenizer: Any = ToyTokenizer()
    return AsyncRolloutImpl(tokenizer, {"toy": environment}, n, max_seq_len, policy, **more)


def run(
    script: list[list[Turn]], steps: list[Step], given: Any = None, with_logprobs: bool = True, **more: Any
) -> tuple[PromptGroupRecord, ScriptedGeneration, ScriptedEnvironment]:
    policy, environment = ScriptedGeneration(script, with_logprobs), ScriptedEnvironment(steps)
    impl = rollouts(policy, environment, len(script), **more)
    return asyncio.run(impl.run_rollout(given or sample())), policy, environment


def tokens(record: PromptGroupRecord, index: int = 0) -> list[list[int]]:
    return [entry["token_ids"].tolist() for entry in record.completions[index].message_log]


def test_n1_one_turn_is_recorded_as_it_was_sampled() -> None:
    turn = Turn([21, 22, 2], [-0.5, -0.25, -0.125])
    record, _, _ = run([[turn]], [Step("31 32", 1.0, True)])
    completion, metrics = record.completions[0], record.rollout_metrics
    assert tokens(record) == [[11, 12, 13], [21, 22, 2], [31, 32]]
    said = completion.message_log[1]
    assert (said["role"], said["content"]) == ("assistant", "21 22")
    assert said["generation_logprobs"].tolist() == [-0.5, -0.25, -0.125]
    assert said["generation_logprobs"].dtype == torch.float32
    assert token_loss_mask(completion.message_log).tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert completion.reward == 1.0 and not completion.truncated
    expected = {
        "total_tokens_per_sample/mean": 5.0,
        "gen_tokens_per_sample/mean": 3.0,
        "mean_gen_tokens_per_sample": 3.0,
        "env_tokens_per_sample/mean": 2.0,
        "sequence_tokens_per_sample/mean": 8.0,
        "natural_termination_rate": 1.0,
        "max_turns_reached_rate": 0.0,
        "turn_limit_stop_rate": 0.0,
        "truncation_rate": 0.0,
        "total_turns": 1,
        "per_worker_token_counts": {},
        "histogram/gen_tokens_length": [3],
        "histogram/input_tokens_length": [3],
        "histogram/total_tokens_length": [6],
        "total_reward/histogram": {"values": [1.0]},
    }
    assert {key: metrics[key] for key in expected} == expected
    assert math.isnan(metrics["total_reward/stddev"])


def test_the_metrics_of_a_group_have_exactly_the_published_keys_and_the_added_ones() -> None:
    record, _, _ = run([[Turn([21])], [Turn([22])]], [Step(terminated=True)])
    five = ("mean", "max", "min", "median", "stddev", "histogram")
    keyed = ("total_reward", "turns_per_sample", "total_tokens_per_sample", "gen_tokens_per_sample")
    keyed += ("env_tokens_per_sample", "sequence_tokens_per_sample")
    expected = {f"{key}/{kind}" for key in keyed for kind in five}
    expected |= {"turns_per_sample/p95", "turns_per_sample/p99", "total_turns", "mean_gen_tokens_per_sample"}
    expected |= {f"max_gen_tokens_per_turn/{kind}" for kind in ("max", "mean", "p95")}
    expected |= {
        "truncation_rate",
        "natural_termination_rate",
        "max_turns_reached_rate",
        "turn_limit_stop_rate",
    }
    expected |= {"per_worker_token_counts"}
    expected |= {f"histogram/{kind}_tokens_length" for kind in ("gen", "input", "total")}
    expected |= {f"timing/rollout/{kind}" for kind in ("total", "run_rollouts", "aggregate_metrics")}
    assert set(record.rollout_metrics) == expected


def test_n2_the_second_turn_reads_all_tokens_of_the_first() -> None:
    turns = [Turn([21, 22, 2], worker=0), Turn([23, 2], worker=1)]
    steps = [
        Step("31 32", 0.25, False, {"step": 1}, ["41"]),
        Step("33", 1.0, True, {"step": 2}),
    ]
    given = sample()
    record, policy, _ = run([turns], steps, given)
    second = policy.requests[1]
    assert second["input_ids"].tolist() == [[11, 12, 13, 21, 22, 2, 31, 32]]
    assert second["input_lengths"].tolist() == [8] and second["input_lengths"].dtype == torch.int32
    assert second["stop_strings"] == [["41"]]
    completion, metrics = record.completions[0], record.rollout_metrics
    assert completion.reward == 1.25
    assert completion.env_extras == {"step": 1}
    assert completion.final_metadata == {"step": 2}
    assert metrics["per_worker_token_counts"] == {0: 3, 1: 2}
    assert metrics["histogram/input_tokens_length"] == [3, 8]
    assert metrics["histogram/total_tokens_length"] == [6, 10]
    assert len(given["message_log"]) == 1
    assert record.prompt is given["message_log"] and record.extra_env_info is given["extra_env_info"]
    assert record.metadata == {"task_name": "toy"} and given["extra_env_info"] == {"step": 0}


@pytest.mark.parametrize(
    ("max_seq_len", "truncated", "kept", "overflow"),
    [(10, True, [31, 32, 33], 0), (9, True, [31, 32], 1), (7, True, [], 3), (6, True, [], 3)],
)
def test_n3_observations_are_cut_at_the_limit_and_generations_never(
    max_seq_len: int, truncated: bool, kept: list[int], overflow: int
) -> None:
    steps = [Step("31 32 33", 0.5)]
    record, policy, _ = run([[Turn([21, 22, 23])]], steps, sample(11, 12, 13, 14), max_seq_len=max_seq_len)
    completion = record.completions[0]
    last = completion.message_log[-1]
    assert (completion.truncated, last["token_ids"].tolist()) == (truncated, kept)
    assert last["token_ids"].dtype == torch.int64 and last["content"] == "31 32 33"
    assert completion.reward == 0.5 and completion.overflow_tokens == overflow
    assert len(policy.requests) == 1


def test_n3_one_token_more_room_and_the_next_turn_follows() -> None:
    steps = [Step("31 32 33"), Step("34", terminated=True)]
    record, policy, _ = run([[Turn([21, 22, 23]), Turn([24])]], steps, sample(11, 12, 13, 14), max_seq_len=11)
    assert len(policy.requests) == 2
    assert tokens(record)[2] == [31, 32, 33]


def test_n4_a_cut_generation_is_still_judged_once() -> None:
    record, _, environment = run([[Turn([21, 22], truncated=True)]], [Step("31", 0.5)])
    assert len(environment.seen) == 1
    assert record.completions[0].reward == 0.5 and tokens(record)[-1] == [31]
    metrics = record.rollout_metrics
    assert (metrics["total_turns"], metrics["truncation_rate"]) == (1, 1.0)
    assert metrics["natural_termination_rate"] == 0.0


@pytest.mark.parametrize(
    ("cap", "ends", "reached", "natural", "stopped"),
    [(1, True, 1.0, 1.0, 0.0), (2, True, 0.0, 1.0, 0.0), (2, False, 1.0, 0.0, 1.0)],
)
def test_n5_the_turn_cap(cap: int, ends: bool, reached: float, natural: float, stopped: float) -> None:
    record, _, _ = run([[Turn([21]), Turn([22])]], [Step("31", 0.5, ends)], max_rollout_turns=cap)
    metrics = record.rollout_metrics
    assert metrics["max_turns_reached_rate"] == reached
    assert metrics["natural_termination_rate"] == natural
    assert metrics["turn_limit_stop_rate"] == stopped
    if not ends:
        assert record.completions[0].reward == 1.0 and len(tokens(record)) == 5


def test_n5_a_cap_of_zero_leaves_the_prompt_alone() -> None:
    record, _, _ = run([[]], [Step()], max_rollout_turns=0)
    assert tokens(record) == [[11, 12, 13]] and record.completions[0].reward == 0
    assert record.rollout_metrics["total_turns"] == 0
    assert record.rollout_metrics["max_turns_reached_rate"] == 1.0


def test_n6_stop_strings_stay_until_others_come() -> None:
    steps = [Step("31"), Step("32", next_stops=["b"]), Step("33"), Step("34", terminated=True)]
    _, policy, _ = run(
        [[Turn([20 + n]) for n in range(4)]], steps, sample(stop_strings=["a"]), max_seq_len=99
    )
    assert [request["stop_strings"][0] for request in policy.requests] == [["a"], ["a"], ["b"], ["b"]]


def test_n7_members_stay_in_order_whoever_is_done_first() -> None:
    async def play() -> PromptGroupRecord:
        first, second = asyncio.Event(), asyncio.Event()
        script = [
            [Turn([21], after=first, sets=second)],
            [Turn([22, 2], after=second)],
            [Turn([23], truncated=True, sets=first)],
        ]

        class Judge(ScriptedEnvironment):
            def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
                given = super().step(message_log_batch, metadata)
                reward = float(message_log_batch[0][1]["content"] == "23")
                return given._replace(rewards=torch.tensor([reward]))

        impl = rollouts(ScriptedGeneration(script), Judge([Step("31", 0.0, True)]), 3)
        return await impl.run_rollout(sample())

    record = asyncio.run(play())
    assert [tokens(record, index)[1] for index in range(3)] == [[21], [22, 2], [23]]
    metrics = record.rollout_metrics
    assert metrics["histogram/gen_tokens_length"] == [1, 2, 1]
    assert metrics["truncation_rate"] == 1 / 3
    assert metrics["total_reward/stddev"] == pytest.approx(0.57735, abs=1e-5)


def test_n8_an_empty_observation_keeps_the_tokens_whole_numbers() -> None:
    _, policy, _ = run([[Turn([21]), Turn([22])]], [Step(""), Step("", terminated=True)])
    assert policy.requests[1]["input_ids"].dtype == torch.int64
    assert policy.requests[1]["input_ids"].tolist() == [[11, 12, 13, 21]]


def test_n9_turns_of_the_prompt_are_not_trained_on() -> None:
    log = [message("system", 5), message("user", 6), message("assistant", 7), message("user", 8)]
    record, _, _ = run([[Turn([21, 2])]], [Step("", terminated=True)], sample(message_log=log))
    assert token_loss_mask(record.completions[0].message_log).tolist() == [0, 0, 0, 0, 1, 1]


def test_n10_a_failed_generation_fails_the_group_and_says_whose_it_was() -> None:
    script = [[Turn([21])], [Turn([], error=ConnectionError("gone"))]]
    with pytest.raises(GenerationUnavailable, match="prompt_idx=5 traj_idx=1") as failed:
        run(script, [Step("31", 0, True)], sample(idx=5))
    assert isinstance(failed.value.__cause__, ConnectionError)


def test_a_generation_that_the_data_made_fail_is_a_data_failure() -> None:
    with pytest.raises(RolloutDataFailure, match=r"prompt_idx=0 traj_idx=0: .*bad token"):
        run([[Turn([], error=ValueError("bad token"))]], [Step()])


def test_a_backend_that_gives_nothing_is_a_failure() -> None:
    class Silent:
        async def generate_async(self, data: Any, greedy: bool = False) -> Any:
            for nothing in ():
                yield nothing

    impl = rollouts(Silent(), ScriptedEnvironment([Step()]))
    with pytest.raises(GenerationUnavailable, match="no output"):
        asyncio.run(impl.run_rollout(sample()))


def test_what_an_environment_raises_goes_up_unchanged() -> None:
    error = LookupError("no such page")
    with pytest.raises(LookupError) as failed:
        run([[Turn([21])]], [Step(error=error)])
    assert failed.value is error


def test_rewards_by_name_are_refused() -> None:
    class Several(ScriptedEnvironment):
        def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            return super().step(message_log_batch, metadata)._replace(rewards={"style": torch.ones(1)})

    impl = rollouts(ScriptedGeneration([[Turn([21])]]), Several([Step()]))
    with pytest.raises(AssertionError, match="dict"):
        asyncio.run(impl.run_rollout(sample()))


def test_a_prompt_without_a_task_or_a_number_is_a_key_error() -> None:
    for key in ("task_name", "idx"):
        given = sample()
        del given[key]
        with pytest.raises(KeyError, match=key):
            run([[Turn([21])]], [Step()], given)


def test_a_task_without_an_environment_is_named() -> None:
    with pytest.raises(ValueError, match="'chess'"):
        run([[Turn([21])]], [Step()], sample(task_name="chess"))


def test_without_log_probabilities_nothing_is_trained_on_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record, _, _ = run([[Turn([21, 2])]], [Step(terminated=True)], with_logprobs=False)
    assert not token_loss_mask(record.completions[0].message_log).any()
    assert "no log-probabilities" in caplog.text


def test_when_one_member_fails_the_others_are_cancelled_before_it_is_told() -> None:
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
                await asyncio.sleep(0)  # cleaning up takes its time
                ended.append("cancelled")
            yield

    impl = rollouts(Slow(), ScriptedEnvironment([Step()]), 3)
    with pytest.raises(GenerationUnavailable):
        asyncio.run(impl.run_rollout(sample()))
    assert ended == ["cancelled", "cancelled"]


def test_cancelling_a_group_is_a_cancellation_and_ends_its_members() -> None:
    async def play() -> list[Any]:
        forever = asyncio.Event()
        impl = rollouts(
            ScriptedGeneration([[Turn([21], after=forever)]] * 2), ScriptedEnvironment([Step()]), 2
        )
        group = asyncio.create_task(impl.run_rollout(sample()))
        await asyncio.sleep(0.01)
        group.cancel()
        with pytest.raises(asyncio.CancelledError):
            await group
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(play()) == []


def test_a_turn_that_takes_too_long_is_a_generation_that_is_unavailable() -> None:
    async def play() -> None:
        turns = [[Turn([21], after=asyncio.Event())]]
        limits = RolloutTimeouts(generation_s=0.02)
        impl = rollouts(ScriptedGeneration(turns), ScriptedEnvironment([Step()]), timeouts=limits)
        await impl.run_rollout(sample())

    with pytest.raises(GenerationUnavailable, match=r"longer than 0\.02 s") as failed:
        asyncio.run(play())
    assert isinstance(failed.value.__cause__, RolloutTimeout)


def test_a_step_that_takes_too_long_is_a_timeout_and_one_that_raises_its_own_is_not() -> None:
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


def test_a_rollout_in_which_nothing_happens_any_more_ends() -> None:
    with pytest.raises(RolloutDataFailure, match="2 turns in a row added no token"):
        run([[Turn([21]), *[Turn([])] * 9]], [Step("")], max_seq_len=99)


def test_seeds_are_the_same_for_the_same_turn_and_differ_for_all_others() -> None:
    def seeds(seed: int | None, idx: int) -> list[int]:
        turns = [[Turn([21]), Turn([22])] for _ in range(3)]
        _, policy, _ = run(turns, [Step("31"), Step("32", terminated=True)], sample(idx=idx), seed=seed)
        return [request["seeds"][0] for request in policy.requests if "seeds" in request]

    assert seeds(None, 0) == []
    assert sorted(seeds(7, 0)) == sorted(seeds(7, 0))
    assert len({*seeds(7, 0), *seeds(7, 1), *seeds(8, 0)}) == 18
    assert all(0 <= seed < 2**63 for seed in seeds(7, 0))


def three_of_which_one_fails() -> list[list[Turn]]:
    return [[Turn([21])], [Turn([], error=ConnectionError("gone"))], [Turn([23])]]


def test_a_shrunk_group_is_those_who_succeeded() -> None:
    rules = GroupIntegrity(on_member_failure="shrink")
    record, _, _ = run(three_of_which_one_fails(), [Step(reward=1.0, terminated=True)], integrity=rules)
    assert [completion.generation_index for completion in record.completions] == [0, 2]
    assert list(record.failures) == [1] and "ConnectionError: gone" in record.failures[1]
    assert record.rollout_metrics["total_reward/mean"] == 1.0
    assert record.rollout_metrics["failed_members"] == 1


def test_a_masked_member_keeps_its_place_and_has_nothing_to_train_on() -> None:
    rules = GroupIntegrity(on_member_failure="mask")
    record, _, _ = run(three_of_which_one_fails(), [Step(reward=1.0, terminated=True)], integrity=rules)
    assert [completion.generation_index for completion in record.completions] == [0, 1, 2]
    failed = record.completions[1]
    assert failed.failure is not None and "gone" in failed.failure
    assert not token_loss_mask(failed.message_log).any() and tokens(record, 1) == [[11, 12, 13]]
    assert record.rollout_metrics["total_reward/mean"] == 1.0


def test_a_group_of_too_few_is_none() -> None:
    script = [[Turn([21])], [Turn([], error=ConnectionError("gone"))]]
    with pytest.raises(GenerationUnavailable, match="traj_idx=1"):
        run(script, [Step(terminated=True)], integrity=GroupIntegrity("shrink", min_members=2))


def test_a_member_that_infrastructure_failed_is_tried_again() -> None:
    script = [[Turn([], error=ConnectionError("gone")), Turn([21])], [Turn([22])]]
    rules = GroupIntegrity(member_attempts=2)
    policy = RolloutRetryPolicy(1, 1, 1, backoff_base_s=0.0)
    record, _, _ = run(script, [Step(terminated=True)], integrity=rules, retry_policy=policy)
    assert tokens(record)[1] == [21] and record.failures == {}


@given(
    prompt=st.integers(0, 5),
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    max_seq_len=st.integers(1, 24),
)
def test_lengths_masks_and_truncation_agree_whatever_is_said(
    prompt: int, lengths: list[tuple[int, int]], max_seq_len: int
) -> None:
    lengths = [(generated or 1, observed) for generated, observed in lengths]
    turns = [Turn([20 + n] * generated) for n, (generated, _) in enumerate(lengths)]
    steps = [Step(" ".join(["31"] * observed)) for _, observed in lengths]
    log = [message("user", *range(40, 40 + prompt))]
    record, policy, _ = run(
        [turns], steps, sample(message_log=log), max_seq_len=max_seq_len, max_rollout_turns=len(turns)
    )
    completion, metrics = record.completions[0], record.rollout_metrics
    flat, mask = flat_token_ids(completion.message_log), token_loss_mask(completion.message_log)
    assert len(flat) == len(mask) == metrics["sequence_tokens_per_sample/mean"]
    assert (
        int(mask.sum())
        == metrics["gen_tokens_per_sample/mean"]
        == sum(metrics["histogram/gen_tokens_length"])
    )
    assert len(flat) - prompt == metrics["total_tokens_per_sample/mean"]
    for request in policy.requests:  # each turn read exactly what the log holds up to it
        length = int(request["input_lengths"][0])
        assert request["input_ids"][0].tolist() == flat[:length].tolist()
    last = metrics["histogram/total_tokens_length"][-1]
    observed = lengths[len(policy.requests) - 1][1]
    assert completion.truncated == (last + observed >= max_seq_len)
    assert completion.overflow_tokens == max(0, observed - max(0, max_seq_len - last))
