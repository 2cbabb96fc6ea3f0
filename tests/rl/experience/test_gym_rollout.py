"""Groups on the Gym path: rows, order, the record, the manager."""

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_rl.experience.failures import GymTransportError, RolloutTimeout
from nemo_rl.experience.gym_metrics import gym_metrics
from nemo_rl.experience.gym_rollout import AsyncNemoGymRolloutImpl, row_seed
from nemo_rl.experience.interfaces import GroupIntegrity
from nemo_rl.experience.message_log import flat_token_ids
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutTimeouts
from nemo_rl.utils.timer import Timer
from tests.support.gym_handles import (
    CONFIG,
    Batch,
    Handle,
    Row,
    Scripted,
    Streaming,
    implementation,
    managed,
    play_group,
    result,
    sample,
    succeed,
)
from tests.support.toy_tokenizer import ToyTokenizer
from tests.support.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.torch

FORMS = pytest.mark.parametrize("form", [Streaming, Batch])


def rows_of(row_params: dict[str, Any], **fields: Any) -> tuple[Any, list[Row]]:
    prompt = sample(**fields)
    prompt["extra_env_info"]["responses_create_params"] |= row_params
    return prompt, implementation(Handle())._build_inputs(prompt)


def test_rows_get_the_sampling_settings_of_the_configuration_and_the_prompt_is_unchanged() -> None:
    prompt, rows = rows_of({"temperature": 0.1, "max_output_tokens": 64}, expected="4")
    assert [row["_rowidx"] for row in rows] == [0, 1]
    for row in rows:
        params = row["responses_create_params"]
        assert (params["temperature"], params["top_p"], params["max_output_tokens"]) == (0.7, 0.9, 32)
        assert (row["expected"], params["input"]) == ("4", [{"role": "user", "content": "11 12"}])
        assert "seed" not in params
    assert prompt["extra_env_info"]["responses_create_params"]["temperature"] == 0.1
    assert "_rowidx" not in prompt["extra_env_info"]


@pytest.mark.parametrize(("given_limit", "expected"), [({"max_output_tokens": 16}, 16), ({}, 32)])
def test_smaller_token_limit_of_the_row_is_kept(given_limit: dict[str, int], expected: int) -> None:
    rows = rows_of(given_limit)[1]
    assert [row["responses_create_params"]["max_output_tokens"] for row in rows] == [expected] * 2


def test_rows_are_independent_copies() -> None:
    prompt, rows = rows_of({})
    rows[0]["responses_create_params"]["input"].append("more")
    assert len(rows[1]["responses_create_params"]["input"]) == 1
    assert len(prompt["extra_env_info"]["responses_create_params"]["input"]) == 1


def test_rows_of_a_seeded_run_have_reproducible_seeds() -> None:
    def seeds(seed: int, idx: int) -> list[int]:
        rows = implementation(Handle(), seed=seed)._build_inputs(sample(idx))
        return [row["responses_create_params"]["seed"] for row in rows]

    assert seeds(3, 7) == seeds(3, 7) == [row_seed(3, 7, 0), row_seed(3, 7, 1)]
    assert len({*seeds(3, 7), *seeds(3, 8), *seeds(4, 7)}) == 6
    assert all(0 <= seed < 2**31 for seed in seeds(3, 7))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"top_k": -1}, "top_k"),
        ({"stop_strings": ["x"]}, "stop_strings"),
        ({"stop_token_ids": [2], "top_k": 5}, "stop_token_ids"),
    ],
)
def test_sampling_settings_that_rows_cannot_carry_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        implementation(Handle(), generation_config={**CONFIG, **changes})


def test_turn_limit_is_refused_even_if_it_is_one() -> None:
    with pytest.raises(AssertionError, match="max_rollout_turns"):
        implementation(Handle(), max_rollout_turns=1)


def test_disabled_sampling_settings_are_accepted_and_missing_ones_are_not() -> None:
    implementation(Handle(), generation_config={**CONFIG, "top_k": 0, "stop_token_ids": []})
    without = {key: value for key, value in CONFIG.items() if key != "top_k"}
    with pytest.raises(KeyError, match="top_k"):
        implementation(Handle(), generation_config=without)


@FORMS
def test_record_has_the_completions_in_row_order(form: type[Handle]) -> None:
    done = [asyncio.Event() for _ in range(4)]
    done[3].set()

    async def last_first(row: Row) -> dict[str, Any]:
        await done[row["_rowidx"]].wait()
        done[row["_rowidx"] - 1].set()
        return await succeed(row)

    async def play() -> Any:
        return await implementation(form(last_first), 3).run_rollout(sample())

    done[2].set()
    record = asyncio.run(play())
    assert [completion.reward for completion in record.completions] == [0.0, 1.0, 2.0]
    assert [completion.generation_index for completion in record.completions] == [0, 1, 2]
    assert record.prompt_idx == 7
    assert record.metadata == {"task_name": "nemo_gym"}
    assert record.rollout_metrics["timing/rollout/await_results"] == 0.25


def test_record_has_the_prompt_that_the_policy_read() -> None:
    prompt = sample()
    record = asyncio.run(implementation(Streaming()).run_rollout(prompt))
    assert [message["token_ids"].tolist() for message in record.prompt] == [[11, 12]]
    assert record.prompt is not record.completions[0].message_log
    assert record.extra_env_info is prompt["extra_env_info"]
    assert (record.failures, record.integrity.on_member_failure) == ({}, "drop")


def test_sample_of_the_caller_is_not_changed() -> None:
    prompt = sample(expected="4")
    before = copy.deepcopy(prompt["extra_env_info"])
    asyncio.run(implementation(Streaming(), seed=1).run_rollout(prompt))
    assert prompt["extra_env_info"] == before
    assert len(prompt["message_log"]) == 1


def test_concurrent_groups_do_not_mix() -> None:
    async def echo(row: Row) -> dict[str, Any]:
        await asyncio.sleep(0.001 * (row["number"] % 3))
        return result(reward=row["number"])

    async def play() -> list[Any]:
        impl = implementation(Streaming(echo), 2)
        return await asyncio.gather(*(impl.run_rollout(sample(idx, number=idx)) for idx in range(20)))

    for idx, record in enumerate(asyncio.run(play())):
        assert record.prompt_idx == idx
        assert [completion.reward for completion in record.completions] == [idx, idx]


def test_repeated_row_is_refused() -> None:
    with pytest.raises(ValueError, match="row 0 twice"):
        play_group(Scripted(([0, 0], None)))


@pytest.mark.parametrize("rowidx", [2, -1, "1", None, True, 1.0])
def test_row_that_was_not_sent_is_refused(rowidx: Any) -> None:
    with pytest.raises(ValueError, match=r"expected one of rows 0, 1"):
        play_group(Scripted(([0, rowidx], None)))


def test_error_names_rows_without_a_result() -> None:
    with pytest.raises(GymTransportError, match="no result for rows 1, 2") as caught:
        play_group(Scripted(([0], None)), 3)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.__notes__ == ["in the group of prompt_idx=7"]


class FixedCount(Handle):
    """Returns a fixed number of results, whatever was sent."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    async def run_rollouts(self, rows: list[Row], tokenizer: Any, timer_prefix: str) -> Any:
        return [result()] * self.count, {}


def test_batch_with_too_few_or_too_many_results_is_refused() -> None:
    with pytest.raises(GymTransportError, match="no result for rows 1"):
        play_group(FixedCount(1))
    with pytest.raises(ValueError, match="3 results for 2 rows"):
        play_group(FixedCount(3))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_batch_without_timing_is_refused_with_the_expected_form(n: int) -> None:
    class WithoutTiming(Handle):
        async def run_rollouts(self, rows: list[Row], tokenizer: Any, timer_prefix: str) -> Any:
            return [result() for _ in rows]

    with pytest.raises(ValueError, match=r"\(results, timing\)"):
        play_group(WithoutTiming(), n)


class Reference:
    """Like a Ray object reference: awaiting it gives the value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return self.value


class RemoteStream:
    """Like a Ray actor whose method is a generator."""

    class run_rollouts:
        @staticmethod
        async def remote(rows: list[Row], tokenizer: Any, timer_prefix: str) -> Any:
            for row in reversed(rows):
                yield Reference((row["_rowidx"], await succeed(row), None))


class RemoteBatch:
    """Like a Ray actor whose method returns all results at once."""

    class run_rollouts:
        @staticmethod
        def remote(rows: list[Row], tokenizer: Any, timer_prefix: str) -> Any:
            return Reference(([result(reward=row["_rowidx"]) for row in rows], {}))


@pytest.mark.parametrize("handle", [RemoteStream(), RemoteBatch()])
def test_handle_may_be_a_ray_actor_that_returns_references(handle: Any) -> None:
    record = play_group(handle)
    assert [completion.reward for completion in record.completions] == [0.0, 1.0]


def test_error_without_a_gym_environment_names_the_known_tasks() -> None:
    tokenizer: Any = ToyTokenizer()
    impl = AsyncNemoGymRolloutImpl(tokenizer, {"math": object()}, 2, 16, CONFIG)
    with pytest.raises(ValueError, match=r"'nemo_gym'; known tasks: 'math'"):
        asyncio.run(impl.run_rollout(sample()))


@pytest.mark.parametrize("missing", ["idx", "agent_ref"])
def test_prompt_without_a_required_key_is_refused_before_a_row_is_played(missing: str) -> None:
    prompt, handle = sample(), Streaming()
    prompt.pop(missing, None)
    prompt["extra_env_info"].pop(missing, None)
    with pytest.raises(KeyError, match=missing):
        asyncio.run(implementation(handle).run_rollout(prompt))
    assert not handle.dispatches


def test_error_for_a_prompt_without_a_row_names_extra_env_info() -> None:
    prompt, handle = sample(), Streaming()
    prompt["extra_env_info"] = None
    with pytest.raises(ValueError, match="extra_env_info") as refused:
        asyncio.run(implementation(handle).run_rollout(prompt))
    assert "prompt_idx=7" in str(refused.value) and "row" in str(refused.value)
    assert not handle.dispatches


def test_handle_gets_the_tokenizer_and_the_timer_prefix() -> None:
    received: list[Any] = []

    class Recording(Batch):
        async def run_rollouts(self, rows: list[Row], tokenizer: Any, timer_prefix: str) -> Any:
            received.append((tokenizer, timer_prefix))
            return await super().run_rollouts(rows, tokenizer, timer_prefix)

    impl = implementation(Recording())
    asyncio.run(impl.run_rollout(sample()))
    assert received == [(impl.tokenizer, "timing/rollout")]


@FORMS
def test_group_metrics_are_those_of_its_completions_and_its_timings(form: type[Handle]) -> None:
    record = play_group(form())
    times = {
        f"timing/rollout/{kind}" for kind in ("total", "run_rollouts", "compute_metrics", "await_results")
    }
    assert set(record.rollout_metrics) == {*gym_metrics(record.completions, "calc"), *times}


def test_timings_of_the_handle_override_other_metrics() -> None:
    class Timing(Handle):
        async def run_rollouts(self, rows: list[Row], tokenizer: Any, timer_prefix: str) -> Any:
            return [result() for _ in rows], {"total_reward/mean": 99.0}

    impl = implementation(Timing())
    _, metrics = asyncio.run(impl._run_rollouts(impl._build_inputs(sample()), Timer(), "t"))
    assert metrics["total_reward/mean"] == 99.0


def test_timings_of_all_dispatches_of_a_group_are_added() -> None:
    class Retimed(Handle):
        async def run_rollouts(self, rows: list[Row], tokenizer: Any, timer_prefix: str) -> Any:
            self.note(rows)
            is_first = len(self.dispatches) == 1
            wait_s, work_s = (10.0, 2.0) if is_first else (1.0, 1.0)
            timing = {
                f"{timer_prefix}/await_results": wait_s,
                f"{timer_prefix}/postprocess_results": work_s,
                f"{timer_prefix}/postprocess_results_pct": 100 * work_s / (wait_s + work_s),
            }
            yield rows[-1]["_rowidx"], result(), timing
            if is_first:
                raise ConnectionError("gone")

    policy = RolloutRetryPolicy(1, 1, max_gym_row_attempts=2, backoff_base_s=0.0)
    metrics = play_group(Retimed(), retry_policy=policy).rollout_metrics
    assert metrics["timing/rollout/await_results"] == 11.0
    assert metrics["timing/rollout/postprocess_results"] == 3.0
    assert metrics["timing/rollout/postprocess_results_pct"] == pytest.approx(100 * 3 / 14)


def test_overridden_run_rollouts_gets_the_published_arguments() -> None:
    class Own(AsyncNemoGymRolloutImpl):
        async def _run_rollouts(self, inputs: Any, timer: Any, timer_prefix: str) -> Any:  # type: ignore[override]
            completions, metrics = await super()._run_rollouts(inputs, timer, timer_prefix)
            return completions, metrics | {"rows": len(inputs)}

    tokenizer: Any = ToyTokenizer()
    record = asyncio.run(Own(tokenizer, {"nemo_gym": Streaming()}, 2, 16, CONFIG).run_rollout(sample()))
    assert record.rollout_metrics["rows"] == 2
    assert [completion.reward for completion in record.completions] == [0.0, 1.0]


def test_group_that_takes_too_long_times_out_and_its_rows_are_cancelled() -> None:
    async def hang(row: Row) -> dict[str, Any]:
        await asyncio.Event().wait()
        return result()

    handle = Streaming(hang)
    with pytest.raises(RolloutTimeout, match=r"longer than 0\.02 s"):
        play_group(handle, timeouts=RolloutTimeouts(rollout_s=0.02))
    assert sorted(handle.cancelled) == [0, 1]


@FORMS
def test_cancelled_group_cancels_all_its_rows(form: type[Handle]) -> None:
    all_play = asyncio.Event()

    async def play(handle: Handle) -> None:
        playing = asyncio.create_task(implementation(handle, 3).run_rollout(sample()))
        async with asyncio.timeout(30):
            await all_play.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert sorted(handle.cancelled) == [0, 1, 2]

    async def hang(row: Row) -> dict[str, Any]:
        if row["_rowidx"] == 2:
            all_play.set()
        await asyncio.Event().wait()
        return result()

    asyncio.run(play(form(hang)))


def test_manager_plays_through_gym_if_use_nemo_gym_is_set() -> None:
    handle = Streaming()
    manager = managed(handle, seed=5)
    record = asyncio.run(manager.run_rollout(sample()))
    assert isinstance(manager._impl, AsyncNemoGymRolloutImpl)
    assert [completion.reward for completion in record.completions] == [0.0, 1.0]
    assert [row["responses_create_params"]["seed"] for row in handle.rows] == [
        row_seed(5, 7, 0),
        row_seed(5, 7, 1),
    ]


def test_b3_manager_sends_rows_again_and_counts_them() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    handle = Scripted(([1], ConnectionError("gone")), ([2, 0], None))
    policy = RolloutRetryPolicy(1, 1, max_gym_row_attempts=3, backoff_base_s=0.5)
    manager = managed(handle, 3, retry_policy=policy, sleep=sleep)
    record = asyncio.run(manager.run_rollout(sample()))
    assert handle.dispatches == [[0, 1, 2], [0, 2]] and len(record.completions) == 3
    assert manager.stats.as_metrics()["rollout/gym_row_redispatch_total"] == 2.0
    assert waited == [0.5]


def test_timeouts_and_integrity_of_the_manager_apply_to_its_groups() -> None:
    async def hang(row: Row) -> dict[str, Any]:
        await asyncio.sleep(5 if row["_rowidx"] == 1 else 0)
        return await succeed(row)

    limits = RolloutTimeouts(rollout_s=0.1)
    with pytest.raises(RolloutTimeout):
        run_in_virtual_time(managed(Streaming(hang), 3, timeouts=limits).run_rollout(sample()))
    lenient = managed(Streaming(hang), 3, timeouts=limits, integrity=GroupIntegrity("shrink"))
    record, _ = run_in_virtual_time(lenient.run_rollout(sample()))
    assert [completion.generation_index for completion in record.completions] == [0, 2]


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(6)), st.sampled_from([Streaming, Batch]))
def test_completions_have_the_order_of_the_rows_whichever_finishes_first(
    order: list[int], form: type[Handle]
) -> None:
    async def in_order(row: Row) -> dict[str, Any]:
        for _ in range(order.index(row["_rowidx"])):
            await asyncio.sleep(0)
        return await succeed(row)

    record = play_group(form(in_order), 6)
    tokens = [flat_token_ids(completion.message_log).tolist() for completion in record.completions]
    assert tokens == [[11, 12, 20 + index, 2] for index in range(6)]
