"""Native rollouts, turn by turn. The numbers n1 to n9 are those of the published examples."""

import asyncio
import math
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.experience.interfaces import Completion, PromptGroupRecord
from nemo_rl.experience.message_log import flat_token_ids, token_loss_mask
from tests.support.native_rollouts import message, rollouts, run, sample, tokens
from tests.support.scripted_policy import ScriptedEnvironment, ScriptedGeneration, Step, Turn
from tests.support.toy_tokenizer import ToyTokenizer

pytestmark = pytest.mark.torch


def response(policy: Any) -> tuple[Any, Any, Any]:
    """The generated message, input lengths and metrics for the prompt `11 12`."""
    impl = rollouts(policy, ScriptedEnvironment([]))
    return asyncio.run(impl._generate_response([message("user", 11, 12)], None))


def test_n1_one_turn_is_recorded_as_it_was_sampled() -> None:
    turn = Turn([21, 22, 2], [-0.5, -0.25, -0.125])
    record, _, _ = run([[turn]], [Step("31 32", 1.0, True)])
    completion, metrics = record.completions[0], record.rollout_metrics
    assert tokens(record) == [[11, 12, 13], [21, 22, 2], [31, 32]]
    generated = completion.message_log[1]
    assert (generated["role"], generated["content"]) == ("assistant", "21 22")
    assert generated["generation_logprobs"].tolist() == [-0.5, -0.25, -0.125]
    assert generated["generation_logprobs"].dtype == torch.float32
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


def test_group_metrics_have_exactly_the_published_and_the_added_keys() -> None:
    record, _, _ = run([[Turn([21])], [Turn([22])]], [Step(terminated=True)])
    six = ("mean", "max", "min", "median", "stddev", "histogram")
    keyed = ("total_reward", "turns_per_sample", "total_tokens_per_sample", "gen_tokens_per_sample")
    keyed += ("env_tokens_per_sample", "sequence_tokens_per_sample")
    expected = {f"{key}/{kind}" for key in keyed for kind in six}
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


def test_metrics_have_percentiles_of_turns_and_of_the_longest_turns() -> None:
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


def test_longest_turn_is_computed_per_member() -> None:
    script = [[Turn([21]), Turn([22, 22, 22]), Turn([23])], [Turn([24])] * 3, [Turn([25])] * 3]
    record, _, _ = run(script, [Step("31")], max_rollout_turns=3, max_seq_len=99)
    metrics = record.rollout_metrics
    assert metrics["max_gen_tokens_per_turn/mean"] == pytest.approx(5 / 3)
    assert (metrics["max_gen_tokens_per_turn/max"], metrics["turns_per_sample/p95"]) == (3, 3.0)


def test_last_of_several_outputs_is_used() -> None:
    class Drafting(ScriptedGeneration):
        async def generate_async(self, data: Any, greedy: bool = False) -> Any:
            yield 0, self._output(data, Turn([98, 99]))
            yield 0, self._output(data, Turn([21]))

    assert response(Drafting([]))[0]["token_ids"].tolist() == [21]


def test_backend_is_called_with_one_positional_argument() -> None:
    calls: list[Any] = []

    class Recording(ScriptedGeneration):
        async def generate_async(self, *args: Any, **kwargs: Any) -> Any:
            calls.append((len(args), kwargs))
            yield 0, self._output(args[0], Turn([21]))

    response(Recording([]))
    assert calls == [(1, {})]


@pytest.mark.parametrize("worker", [3, [3]])
def test_worker_and_truncation_are_returned_with_a_response(worker: Any) -> None:
    _, input_lengths, gen_metrics = response(
        ScriptedGeneration([[Turn([21], truncated=True, worker=worker)]])
    )
    assert (input_lengths.tolist(), input_lengths.dtype) == ([2], torch.int32)
    truncated = gen_metrics["_response_truncated"]
    assert isinstance(truncated, torch.Tensor) and truncated.dtype == torch.bool and truncated.item()
    assert gen_metrics["gen_leader_worker_idx"] == 3 and isinstance(gen_metrics["gen_leader_worker_idx"], int)


def test_message_has_the_routed_experts_of_its_generated_tokens() -> None:
    class Routing(ScriptedGeneration):
        def _output(self, data: Any, turn: Turn) -> Any:
            output = super()._output(data, turn)
            output["routed_experts"] = torch.arange(output["output_ids"].numel()).reshape(1, -1, 1, 1)
            return output

    generated, _, _ = response(Routing([[Turn([21, 22])]]))
    assert generated["routed_experts"].tolist() == [[[2]], [[3]]]


def test_observations_are_tokenized_without_special_tokens() -> None:
    record, _, _ = run([[Turn([21])]], [Step("31", terminated=True)])
    assert tokens(record)[-1] == [31]
    assert ToyTokenizer()("31")["input_ids"] == [2, 31]


@pytest.mark.parametrize("role", ["tool", "user"])
def test_an_observation_keeps_its_role(role: str) -> None:
    record, _, _ = run([[Turn([21])]], [Step("31", terminated=True, role=role)])
    assert record.completions[0].message_log[-1]["role"] == role


def test_environment_receives_the_state_that_it_returned_last() -> None:
    steps = [Step("31", metadata={"step": 1}), Step("32"), Step("33", terminated=True)]
    _, _, environment = run([[Turn([21])] * 3], steps)
    assert [metadata for _, metadata in environment.seen] == [[{"step": 0}], [{"step": 1}], [{"step": 1}]]


def test_changes_to_prompt_and_state_reach_neither_the_caller_nor_siblings() -> None:
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
def test_n3_observations_are_cut_at_the_limit_but_generations_are_not(
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


def test_n3_next_turn_follows_if_there_is_room_for_one_more_token() -> None:
    steps = [Step("31 32 33"), Step("34", terminated=True)]
    record, policy, _ = run([[Turn([21, 22, 23]), Turn([24])]], steps, sample(11, 12, 13, 14), max_seq_len=11)
    assert len(policy.requests) == 2
    assert tokens(record)[2] == [31, 32, 33]


def test_n4_environment_is_stepped_once_after_a_truncated_generation() -> None:
    record, _, environment = run([[Turn([21, 22], truncated=True)]], [Step("31", 0.5)])
    assert len(environment.seen) == 1
    assert record.completions[0].reward == 0.5 and tokens(record)[-1] == [31]
    metrics = record.rollout_metrics
    assert (metrics["total_turns"], metrics["truncation_rate"]) == (1, 1.0)
    assert metrics["natural_termination_rate"] == 0.0


@pytest.mark.parametrize(("by_backend", "max_seq_len"), [(True, 16), (False, 5)])
def test_truncated_turn_does_not_change_the_state(by_backend: bool, max_seq_len: int) -> None:
    steps = [Step("31", metadata={"step": 1}, next_stops=["b"])]
    record, _, _ = run([[Turn([21], truncated=by_backend)]], steps, max_seq_len=max_seq_len)
    completion = record.completions[0]
    assert completion.truncated and completion.env_extras == {"step": 0}
    assert completion.final_metadata == {"step": 1}


def test_rollout_can_be_both_truncated_and_terminated() -> None:
    record, _, _ = run([[Turn([21], truncated=True)], [Turn([22])]], [Step("31", terminated=True)])
    metrics = record.rollout_metrics
    assert (metrics["truncation_rate"], metrics["natural_termination_rate"]) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("cap", "ends", "reached", "natural", "stopped"),
    [(1, True, 1.0, 1.0, 0.0), (2, True, 0.0, 1.0, 0.0), (2, False, 1.0, 0.0, 1.0)],
)
def test_n5_turn_limit_is_reported_apart_from_termination(
    cap: int, ends: bool, reached: float, natural: float, stopped: float
) -> None:
    record, _, _ = run([[Turn([21]), Turn([22])]], [Step("31", 0.5, ends)], max_rollout_turns=cap)
    metrics = record.rollout_metrics
    assert metrics["max_turns_reached_rate"] == reached
    assert metrics["natural_termination_rate"] == natural
    assert metrics["turn_limit_stop_rate"] == stopped
    if not ends:
        assert record.completions[0].reward == 1.0 and len(tokens(record)) == 5


def test_n5_turn_limit_of_zero_gives_only_the_prompt() -> None:
    record, _, _ = run([[]], [Step()], max_rollout_turns=0)
    assert tokens(record) == [[11, 12, 13]] and record.completions[0].reward == 0
    assert record.rollout_metrics["total_turns"] == 0
    assert record.rollout_metrics["max_turns_reached_rate"] == 1.0


def test_n6_stop_strings_stay_until_the_environment_changes_them() -> None:
    steps = [Step("31"), Step("32", next_stops=["b"]), Step("33"), Step("34", terminated=True)]
    _, policy, _ = run(
        [[Turn([20 + n]) for n in range(4)]], steps, sample(stop_strings=["a"]), max_seq_len=99
    )
    assert [request["stop_strings"][0] for request in policy.requests] == [["a"], ["a"], ["b"], ["b"]]


def test_prompt_without_stop_strings_requests_none() -> None:
    _, policy, _ = run([[Turn([21])]], [Step(terminated=True)])
    assert policy.requests[0]["stop_strings"] == [None]


def test_n7_members_stay_in_order_whichever_finishes_first() -> None:
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


def test_n8_empty_observation_keeps_token_ids_int64() -> None:
    _, policy, _ = run([[Turn([21]), Turn([22])]], [Step(""), Step("", terminated=True)])
    assert policy.requests[1]["input_ids"].dtype == torch.int64
    assert policy.requests[1]["input_ids"].tolist() == [[11, 12, 13, 21]]


def test_n9_assistant_messages_of_the_prompt_are_not_trained_on() -> None:
    log = [message("system", 5), message("user", 6), message("assistant", 7), message("user", 8)]
    record, _, _ = run([[Turn([21, 2])]], [Step("", terminated=True)], sample(message_log=log))
    assert token_loss_mask(record.completions[0].message_log).tolist() == [0, 0, 0, 0, 1, 1]


def plain(value: Any) -> Any:
    """The value with tensors as lists and without timings, so that it can be compared."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if not str(key).startswith("timing/")}
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def test_deterministic_backend_and_environment_give_the_same_record() -> None:
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


def test_concurrent_groups_do_not_mix() -> None:
    async def play() -> list[PromptGroupRecord]:
        all_generate = asyncio.Barrier(6)

        class Echoing(ScriptedGeneration):
            async def generate_async(self, data: Any, greedy: bool = False) -> Any:
                await all_generate.wait()
                yield 0, self._output(data, Turn([100 + int(data["input_ids"][0, 0])]))

        class Numbering(ScriptedEnvironment):
            def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
                observations = [{"role": "environment", "content": str(metadata[0]["number"])}]
                return super().step(message_log_batch, metadata)._replace(observations=observations)

        impl = rollouts(Echoing([]), Numbering([Step(), Step(terminated=True)]), 2)
        prompts = [sample(40 + idx, idx=idx, extra_env_info={"number": 60 + idx}) for idx in range(3)]
        async with asyncio.timeout(30):
            return await asyncio.gather(*map(impl.run_rollout, prompts))

    for idx, record in enumerate(asyncio.run(play())):
        assert record.prompt_idx == idx
        assert record.rollout_metrics["histogram/input_tokens_length"] == [1, 3, 1, 3]
        for index in range(2):
            assert tokens(record, index) == [[40 + idx], *[[140 + idx], [60 + idx]] * 2]


def test_same_turn_has_the_same_seed_and_other_turns_have_other_seeds() -> None:
    def seeds(seed: int | None, idx: int) -> list[int]:
        turns = [[Turn([21]), Turn([22])] for _ in range(3)]
        _, policy, _ = run(turns, [Step("31"), Step("32", terminated=True)], sample(idx=idx), seed=seed)
        return [request["seeds"][0] for request in policy.requests if "seeds" in request]

    assert seeds(None, 0) == []
    assert sorted(seeds(7, 0)) == sorted(seeds(7, 0))
    assert len({*seeds(7, 0), *seeds(7, 1), *seeds(8, 0)}) == 18
    assert all(0 <= seed < 2**63 for seed in seeds(7, 0))


@settings(deadline=None)
@given(
    prompt=st.integers(0, 5),
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    max_seq_len=st.integers(1, 24),
)
def test_lengths_masks_and_truncation_agree_for_random_conversations(
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
    for request in policy.requests:  # the input of each turn is the log up to that turn
        length = int(request["input_lengths"][0])
        assert request["input_ids"][0].tolist() == flat[:length].tolist()
    last = metrics["histogram/total_tokens_length"][-1]
    observed = lengths[len(policy.requests) - 1][1]
    assert completion.truncated == (last + observed >= max_seq_len)
    assert completion.overflow_tokens == max(0, observed - max(0, max_seq_len - last))


def test_backend_changes_only_its_own_copy_of_the_stop_strings() -> None:
    class Adding(ScriptedGeneration):
        def generate_async(self, data: Any, greedy: bool = False) -> Any:
            data["stop_strings"][0].append("more")
            return super().generate_async(data, greedy)

    given = sample(stop_strings=["a"])
    impl = rollouts(Adding([[Turn([21])]] * 2), ScriptedEnvironment([Step(terminated=True)]), 2)
    asyncio.run(impl.run_rollout(given))
    assert given["stop_strings"] == ["a"]
