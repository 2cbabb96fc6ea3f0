"""Native rollouts, turn by turn; the numbered examples are those of the published behaviour."""

import asyncio
import math
import threading
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.experience.failures import (
    GenerationUnavailable,
    RolloutDataFailure,
    RolloutFailure,
    RolloutTimeout,
)
from nemo_rl.experience.interfaces import Completion, GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.message_log import flat_token_ids, token_loss_mask
from nemo_rl.experience.native_rollout import AsyncRolloutImpl
from nemo_rl.experience.retry import RolloutRetryPolicy, RolloutTimeouts
from nemo_rl.experience.rollout_manager import RolloutManager
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


def managed(policy: Any, environment: Any, n: int = 1, **more: Any) -> RolloutManager:
    tokenizer: Any = ToyTokenizer()
    return RolloutManager(tokenizer, {"toy": environment}, n, 16, policy_generation=policy, **more)


def response(policy: Any) -> tuple[Any, Any, Any]:
    """To the prompt `11 12`."""
    impl = rollouts(policy, ScriptedEnvironment([]))
    return asyncio.run(impl._generate_response([message("user", 11, 12)], None))


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


def test_longest_turns_and_numbers_of_turns_are_told_by_the_tails() -> None:
    samples = [
        {
            **{"turn_count": turns, "turn_gen_tokens": [*range(turns)], "terminated": True},
            **{"total_tokens": 0, "assistant_tokens": 0, "env_tokens": 0, "max_turns_reached": False},
            **{"turn_input_tokens": [], "turn_total_tokens": [], "per_worker_token_counts": {}},
        }
        for turns in range(101)
    ]
    completions = [Completion([], None, False, 0.0) for _ in samples]
    impl = rollouts(ScriptedGeneration([]), ScriptedEnvironment([]))
    metrics = impl._aggregate_rollout_metrics(completions, samples)
    assert (metrics["turns_per_sample/p95"], metrics["turns_per_sample/p99"]) == (95.0, 99.0)
    assert metrics["max_gen_tokens_per_turn/max"] == 99
    assert metrics["max_gen_tokens_per_turn/mean"] == pytest.approx(99 * 50 / 101)
    assert metrics["max_gen_tokens_per_turn/p95"] == 94.0


def test_the_longest_turn_is_that_of_each_member() -> None:
    script = [[Turn([21]), Turn([22, 22, 22]), Turn([23])], [Turn([24])] * 3, [Turn([25])] * 3]
    record, _, _ = run(script, [Step("31")], max_rollout_turns=3, max_seq_len=99)
    metrics = record.rollout_metrics
    assert metrics["max_gen_tokens_per_turn/mean"] == pytest.approx(5 / 3)
    assert (metrics["max_gen_tokens_per_turn/max"], metrics["turns_per_sample/p95"]) == (3, 3.0)


def test_of_several_outputs_the_last_is_what_was_said() -> None:
    class Drafting(ScriptedGeneration):
        async def generate_async(self, data: Any, greedy: bool = False) -> Any:
            yield 0, self._output(data, Turn([98, 99]))
            yield 0, self._output(data, Turn([21]))

    assert response(Drafting([]))[0]["token_ids"].tolist() == [21]


def test_a_backend_is_asked_with_the_request_alone() -> None:
    asked: list[Any] = []

    class Noting(ScriptedGeneration):
        async def generate_async(self, *given: Any, **named: Any) -> Any:
            asked.append((len(given), named))
            yield 0, self._output(given[0], Turn([21]))

    response(Noting([]))
    assert asked == [(1, {})]


@pytest.mark.parametrize("worker", [3, [3]])
def test_the_worker_and_the_length_limit_are_told_with_a_response(worker: Any) -> None:
    _, input_lengths, told = response(ScriptedGeneration([[Turn([21], truncated=True, worker=worker)]]))
    assert (input_lengths.tolist(), input_lengths.dtype) == ([2], torch.int32)
    truncated = told["_response_truncated"]
    assert isinstance(truncated, torch.Tensor) and truncated.dtype == torch.bool and truncated.item()
    assert told["gen_leader_worker_idx"] == 3 and isinstance(told["gen_leader_worker_idx"], int)


def test_experts_of_the_generated_tokens_come_with_the_message() -> None:
    class Routing(ScriptedGeneration):
        def _output(self, data: Any, turn: Turn) -> Any:
            output = super()._output(data, turn)
            output["routed_experts"] = torch.arange(output["output_ids"].numel()).reshape(1, -1, 1, 1)
            return output

    said, _, _ = response(Routing([[Turn([21, 22])]]))
    assert said["routed_experts"].tolist() == [[[2]], [[3]]]


def test_observations_are_tokenized_without_special_tokens() -> None:
    record, _, _ = run([[Turn([21])]], [Step("31", terminated=True)])
    assert tokens(record)[-1] == [31]
    assert ToyTokenizer()("31")["input_ids"] == [2, 31]


@pytest.mark.parametrize("role", ["tool", "user"])
def test_an_observation_keeps_its_role(role: str) -> None:
    record, _, _ = run([[Turn([21])]], [Step("31", terminated=True, role=role)])
    assert record.completions[0].message_log[-1]["role"] == role


def test_an_environment_is_given_the_state_that_it_gave_last() -> None:
    steps = [Step("31", metadata={"step": 1}), Step("32"), Step("33", terminated=True)]
    _, _, environment = run([[Turn([21])] * 3], steps)
    assert [metadata for _, metadata in environment.seen] == [[{"step": 0}], [{"step": 1}], [{"step": 1}]]


def test_what_is_done_to_prompt_and_state_reaches_neither_the_caller_nor_siblings() -> None:
    class Wiping(ScriptedGeneration):
        async def generate_async(self, data: Any, greedy: bool = False) -> Any:
            yield 0, self._output(data, Turn([21]))
            data["input_ids"].zero_()

    class Scribbling(ScriptedEnvironment):
        def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            metadata[0]["board"].append(1)
            message_log_batch[0][0]["content"] = "scribbled"
            return super().step(message_log_batch, metadata)

    given = sample(extra_env_info={"board": [0]})
    impl = rollouts(Wiping([]), Scribbling([Step(terminated=True)]), 2)
    for completion in asyncio.run(impl.run_rollout(given)).completions:
        first = completion.message_log[0]
        assert (first["content"], first["token_ids"].tolist()) == ("11 12 13", [11, 12, 13])
        assert completion.env_extras == {"board": [0, 1]}
        first["token_ids"].zero_()
    assert given["extra_env_info"] == {"board": [0]}
    assert given["message_log"][0]["token_ids"].tolist() == [11, 12, 13]


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


@pytest.mark.parametrize(("by_backend", "max_seq_len"), [(True, 16), (False, 5)])
def test_the_state_after_a_truncated_turn_is_that_before_it(by_backend: bool, max_seq_len: int) -> None:
    steps = [Step("31", metadata={"step": 1}, next_stops=["b"])]
    record, _, _ = run([[Turn([21], truncated=by_backend)]], steps, max_seq_len=max_seq_len)
    completion = record.completions[0]
    assert completion.truncated and completion.env_extras == {"step": 0}
    assert completion.final_metadata == {"step": 1}


def test_a_rollout_can_be_both_truncated_and_terminated() -> None:
    record, _, _ = run([[Turn([21], truncated=True)], [Turn([22])]], [Step("31", terminated=True)])
    metrics = record.rollout_metrics
    assert (metrics["truncation_rate"], metrics["natural_termination_rate"]) == (0.5, 1.0)


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


def test_without_stop_strings_of_its_own_a_prompt_asks_for_none() -> None:
    _, policy, _ = run([[Turn([21])]], [Step(terminated=True)])
    assert policy.requests[0]["stop_strings"] == [None]


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


def test_what_an_environment_raises_goes_up_unchanged_and_noted_whose_it_was() -> None:
    error = LookupError("no such page")
    with pytest.raises(LookupError) as failed:
        run([[Turn([21])]], [Step(error=error)], sample(idx=5))
    assert failed.value is error and error.args == ("no such page",)
    assert "prompt_idx=5 traj_idx=0" in "".join(error.__notes__)


def test_an_environment_that_raises_what_no_future_can_hold_fails_its_group() -> None:
    error = StopIteration()
    impl = rollouts(ScriptedGeneration([[Turn([21])]]), ScriptedEnvironment([Step(error=error)]))
    with pytest.raises(RuntimeError) as failed:
        asyncio.run(asyncio.wait_for(impl.run_rollout(sample()), 5))
    assert failed.value.__cause__ is error


def test_log_probabilities_that_are_none_are_a_failure() -> None:
    with pytest.raises(RolloutFailure, match=r"prompt_idx=0 traj_idx=0.*NaN"):
        run([[Turn([21, 22], [-0.5, math.nan])]], [Step(terminated=True)])


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_has_no_baseline_is_a_data_failure(reward: float) -> None:
    with pytest.raises(RolloutDataFailure, match=f"prompt_idx=0 traj_idx=0.*reward of {reward}"):
        run([[Turn([21])]], [Step(reward=reward, terminated=True)])


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


def test_a_manager_says_once_that_its_backend_gives_no_log_probabilities(
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


def test_a_way_to_generate_of_somebodys_own_takes_the_published_arguments() -> None:
    class Own(AsyncRolloutImpl):
        async def _generate_response(self, message_log: Any, stop_strings: Any) -> Any:  # type: ignore[override]
            said, lengths, told = await super()._generate_response(message_log, stop_strings)
            return {**said, "content": "own"}, lengths, told

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


@pytest.mark.parametrize(
    ("last_turn", "last_step", "cap"),
    [
        (Turn([]), Step("", terminated=True), 9),
        (Turn([], truncated=True), Step(""), 9),
        (Turn([]), Step(""), 2),
    ],
)
def test_a_rollout_that_ends_by_itself_may_end_idle(last_turn: Turn, last_step: Step, cap: int) -> None:
    record, _, _ = run([[Turn([]), last_turn]], [Step(""), last_step], max_rollout_turns=cap)
    assert record.rollout_metrics["total_turns"] == 2


def plain(value: Any) -> Any:
    """Without tensors and times, so that it can be compared."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if not str(key).startswith("timing/")}
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def test_a_deterministic_backend_and_environment_give_the_same_record_again() -> None:
    def played(*delays: int) -> Any:
        waits = iter(delays)

        class Reading(ScriptedGeneration):
            async def generate_async(self, data: Any, greedy: bool = False) -> Any:
                for _ in range(next(waits)):
                    await asyncio.sleep(0)
                yield 0, self._output(data, Turn([int(data["input_ids"].sum()), 2], worker=0))

        steps = [Step("31", 0.25, metadata={"step": 1}), Step("32", 1.0, terminated=True)]
        record = asyncio.run(rollouts(Reading([]), ScriptedEnvironment(steps), 2).run_rollout(sample()))
        return plain(asdict(record))

    assert played(0, 9, 9, 0) == played(9, 0, 0, 9)


def test_groups_played_at_the_same_time_do_not_mix() -> None:
    async def play() -> list[PromptGroupRecord]:
        all_ask = asyncio.Barrier(6)

        class Echoing(ScriptedGeneration):
            async def generate_async(self, data: Any, greedy: bool = False) -> Any:
                await all_ask.wait()
                yield 0, self._output(data, Turn([100 + int(data["input_ids"][0, 0])]))

        class Telling(ScriptedEnvironment):
            def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
                told = [{"role": "environment", "content": str(metadata[0]["number"])}]
                return super().step(message_log_batch, metadata)._replace(observations=told)

        impl = rollouts(Echoing([]), Telling([Step(), Step(terminated=True)]), 2)
        prompts = [sample(40 + idx, idx=idx, extra_env_info={"number": 60 + idx}) for idx in range(3)]
        async with asyncio.timeout(10):
            return await asyncio.gather(*map(impl.run_rollout, prompts))

    for idx, record in enumerate(asyncio.run(play())):
        assert record.prompt_idx == idx
        assert record.rollout_metrics["histogram/input_tokens_length"] == [1, 3, 1, 3]
        for index in range(2):
            assert tokens(record, index) == [[40 + idx], *[[140 + idx], [60 + idx]] * 2]


@pytest.mark.parametrize(
    ("limit", "failure", "told"),
    [
        ("rollout_s", RolloutTimeout, "the group of prompt_idx=3"),
        ("generation_s", GenerationUnavailable, "prompt_idx=3 traj_idx=0"),
    ],
)
def test_limits_of_the_manager_are_those_of_its_groups(limit: str, failure: Any, told: str) -> None:
    policy = ScriptedGeneration([[Turn([21], after=asyncio.Event())]])
    manager = managed(policy, ScriptedEnvironment([]), timeouts=RolloutTimeouts(**{limit: 0.02}))
    with pytest.raises(failure, match=told):
        asyncio.run(asyncio.wait_for(manager.run_rollout(sample(idx=3)), 5))


def test_rules_and_waits_of_the_manager_are_those_of_its_members() -> None:
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


def test_environments_are_stepped_by_as_many_at_once_as_the_manager_allows() -> None:
    both_step = threading.Barrier(2, timeout=5)

    class Meeting(ScriptedEnvironment):
        def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            both_step.wait()
            return super().step(message_log_batch, metadata)

    policy = ScriptedGeneration([[Turn([21])], [Turn([22])]])
    manager = managed(policy, Meeting([Step(terminated=True)]), 2, env_concurrency=2)
    assert len(asyncio.run(manager.run_rollout(sample())).completions) == 2


def test_the_seed_of_the_manager_is_that_of_its_turns() -> None:
    policies = [ScriptedGeneration([[Turn([21])]]) for _ in range(2)]
    done = [ScriptedEnvironment([Step(terminated=True)]) for _ in range(2)]
    asyncio.run(managed(policies[0], done[0], seed=7).run_rollout(sample()))
    asyncio.run(rollouts(policies[1], done[1], seed=7).run_rollout(sample()))
    assert policies[0].requests[0]["seeds"] == policies[1].requests[0]["seeds"]


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


@settings(deadline=None)
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
