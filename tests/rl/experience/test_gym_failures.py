"""Failed rows: which rows are sent again, and what happens to the group."""

import asyncio
import logging
from typing import Any

import pytest

from nemo_rl.experience.failures import (
    GymTransportError,
    RolloutConfigurationError,
    RolloutDataFailure,
    RolloutTimeout,
)
from nemo_rl.experience.gym_dispatch import merged_timings
from nemo_rl.experience.integrity import advantage_audit
from nemo_rl.experience.interfaces import GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutStats, RolloutTimeouts
from tests.support.gym_handles import (
    Batch,
    Handle,
    Row,
    Scripted,
    Streaming,
    play_group,
    result,
    succeed,
)

pytestmark = pytest.mark.torch

FORMS = pytest.mark.parametrize("form", [Streaming, Batch])


class RecordedSleep:
    """Records the delays instead of sleeping."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def row_attempts(count: int) -> RolloutRetryPolicy:
    return RolloutRetryPolicy(1, 1, max_gym_row_attempts=count, backoff_base_s=0.5)


def test_only_rows_without_a_result_are_sent_again_after_an_infrastructure_failure() -> None:
    handle = Scripted(([1], ConnectionError("gone")), ([2, 0], None))
    stats, sleep = RolloutStats(), RecordedSleep()
    record = play_group(handle, 3, retry_policy=row_attempts(3), stats=stats, sleep=sleep)
    assert handle.dispatches == [[0, 1, 2], [0, 2]]
    assert len(record.completions) == 3
    assert stats.as_metrics()["rollout/gym_row_redispatch_total"] == 2.0
    assert sleep.seconds == [0.5]


def test_short_stream_is_an_infrastructure_failure() -> None:
    handle, stats, sleep = Scripted(([1], None), ([], None), ([0], None)), RolloutStats(), RecordedSleep()
    play_group(handle, 2, retry_policy=row_attempts(3), stats=stats, sleep=sleep)
    assert handle.dispatches == [[0, 1], [0], [0]]
    assert stats.gym_row_redispatches == 2
    assert sleep.seconds == [0.5, 1.0]


def test_failed_batch_is_sent_again_completely() -> None:
    played: list[int] = []

    async def fails_once(row: Row) -> dict[str, Any]:
        played.append(row["_rowidx"])
        if len(played) == 1:
            raise TimeoutError("slow")
        return await succeed(row)

    handle = Batch(fails_once)
    play_group(handle, 2, retry_policy=row_attempts(2), sleep=RecordedSleep())
    assert handle.dispatches == [[0, 1], [0, 1]]


def test_last_infrastructure_error_is_raised_when_attempts_are_used_up() -> None:
    handle = Scripted(([], ConnectionError("first")), ([], ConnectionResetError("second")))
    with pytest.raises(ConnectionResetError, match="second"):
        play_group(handle, retry_policy=row_attempts(2), sleep=RecordedSleep())


def test_without_a_policy_rows_are_sent_once() -> None:
    handle = Scripted(([0], ConnectionError("gone")))
    with pytest.raises(ConnectionError, match="gone"):
        play_group(handle)
    assert handle.dispatches == [[0, 1]]


@pytest.mark.parametrize(
    "error", [RolloutDataFailure("refused"), AssertionError("tokens"), ValueError("none")]
)
def test_data_failure_is_not_retried(error: Exception) -> None:
    handle = Scripted(([0], error))
    with pytest.raises(type(error)):
        play_group(handle, retry_policy=row_attempts(3), sleep=RecordedSleep())
    assert handle.dispatches == [[0, 1]]


@pytest.mark.parametrize("rule", ["drop", "shrink", "mask"])
def test_configuration_error_ends_the_run_although_an_unknown_host_caused_it(rule: Any) -> None:
    error = RolloutConfigurationError("wrong address")
    error.__cause__ = ConnectionError("no such host")
    handle = Streaming(broken(0, error=error))
    with pytest.raises(RolloutConfigurationError):
        play_group(
            handle, retry_policy=row_attempts(3), sleep=RecordedSleep(), integrity=GroupIntegrity(rule)
        )
    assert len([row for rows in handle.dispatches for row in rows if row == 0]) == 1


def test_row_that_is_not_in_the_second_dispatch_is_refused() -> None:
    handle = Scripted(([1], ConnectionError("gone")), ([0, 1], None))
    with pytest.raises(ValueError, match="returned row 1; expected one of rows 0"):
        play_group(handle, retry_policy=row_attempts(3), sleep=RecordedSleep())


def test_infrastructure_failure_after_the_last_row_is_ignored() -> None:
    handle = Scripted(([0, 1], ConnectionError("gone")))
    assert len(play_group(handle).completions) == 2


def test_timeout_covers_all_attempts_together() -> None:
    async def slow_outage(row: Row) -> dict[str, Any]:
        await asyncio.sleep(0.03)
        raise ConnectionError("gone")

    with pytest.raises(RolloutTimeout):
        policy = RolloutRetryPolicy(1, 1, max_gym_row_attempts=1000, backoff_base_s=0.0)
        play_group(Streaming(slow_outage), retry_policy=policy, timeouts=RolloutTimeouts(rollout_s=0.1))


def broken(*rows: int, error: Exception | None = None) -> Any:
    async def play(row: Row) -> dict[str, Any]:
        if row["_rowidx"] in rows:
            raise error or AssertionError("non-contiguous history")
        return await succeed(row)

    return play


@FORMS
def test_one_failed_row_fails_the_group_and_cancels_the_others(form: type[Handle]) -> None:
    async def play(row: Row) -> dict[str, Any]:
        if row["_rowidx"] == 1:
            raise AssertionError("non-contiguous history")
        await asyncio.Event().wait()
        return result()

    handle = form(play)
    with pytest.raises(AssertionError, match="non-contiguous"):
        play_group(handle, 3)
    if form is Streaming:  # the manager does not control the rows of a batch
        assert sorted(handle.cancelled) == [0, 2]


def shrunk(play: Any, form: type[Handle] = Streaming, n: int = 3, **options: Any) -> PromptGroupRecord:
    return play_group(form(play), n, integrity=GroupIntegrity("shrink"), **options)


@FORMS
def test_shrunk_group_has_the_rows_that_succeeded(
    form: type[Handle], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        record = shrunk(broken(1), form)
    assert [completion.generation_index for completion in record.completions] == [0, 2]
    assert [completion.reward for completion in record.completions] == [0.0, 2.0]
    assert record.failures == {1: "AssertionError: non-contiguous history"}
    assert "prompt_idx=7 traj_idx=1" in caplog.text


def test_metrics_of_a_shrunk_group_cover_its_members() -> None:
    metrics = shrunk(broken(0)).rollout_metrics
    assert metrics["failed_members"] == 1
    assert metrics["total_reward/mean"] == 1.5
    assert metrics["calc/reward/histogram"] == {"values": [1.0, 2.0]}
    assert metrics["timing/rollout/await_results"] == 0.25


def test_masked_member_keeps_its_place_and_does_not_vote() -> None:
    record = play_group(Streaming(broken(0)), 3, integrity=GroupIntegrity("mask"))
    first = record.completions[0]
    assert first.failure == record.failures[0] == "AssertionError: non-contiguous history"
    assert (first.env_extras, first.truncated, first.reward, first.generation_index) == (None, False, 0.0, 0)
    assert [message["token_ids"].tolist() for message in first.message_log] == [[11, 12]]
    assert [message["token_ids"].tolist() for message in record.prompt] == [[11, 12]]
    assert record.rollout_metrics["total_reward/mean"] == 1.5
    audit = advantage_audit(record)
    assert (audit.baseline, audit.advantages) == (1.5, [0.0, -0.5, 0.5])


@pytest.mark.parametrize("rule", ["shrink", "mask"])
def test_group_without_failure_is_the_same_under_every_rule(rule: Any) -> None:
    plain, other = (play_group(Streaming(), 3, integrity=one) for one in (None, GroupIntegrity(rule)))
    assert [member.reward for member in plain.completions] == [member.reward for member in other.completions]
    assert other.failures == {}
    assert plain.rollout_metrics.keys() == other.rollout_metrics.keys()


def test_group_with_too_few_members_fails_with_the_first_failure() -> None:
    with pytest.raises(RolloutDataFailure, match="refused"):
        shrunk(broken(1, 2, error=RolloutDataFailure("refused")))


def test_unusable_result_fails_only_its_row() -> None:
    async def play(row: Row) -> dict[str, Any]:
        return result(reward=1.0, reward_components={"a": 1.0 if row["_rowidx"] else 0.0})

    assert list(shrunk(play).failures) == [0]


def test_hanging_row_times_out_without_affecting_others() -> None:
    async def play(row: Row) -> dict[str, Any]:
        await asyncio.sleep(10 if row["_rowidx"] == 2 else 0)
        return result()

    record = shrunk(play, timeouts=RolloutTimeouts(rollout_s=0.05))
    assert list(record.failures) == [2]
    assert record.failures[2].startswith("RolloutTimeout: row 2")


@pytest.mark.parametrize(("max_row_attempts", "member_attempts"), [(3, 1), (1, 3), (2, 3)])
def test_row_is_sent_as_often_as_the_larger_budget_allows(
    max_row_attempts: int, member_attempts: int
) -> None:
    stats = RolloutStats()
    handle = Streaming(broken(1, error=GymTransportError("gone")))
    integrity = GroupIntegrity("shrink", member_attempts=member_attempts)
    record = play_group(
        handle,
        3,
        integrity=integrity,
        retry_policy=row_attempts(max_row_attempts),
        stats=stats,
        sleep=RecordedSleep(),
    )
    assert sorted(handle.dispatches) == [[0], [1], [1], [1], [2]]
    assert stats.gym_row_redispatches == 2
    assert record.failures == {1: "GymTransportError: gone"}


def test_timings_of_concurrent_rows_are_the_longest_wait_and_the_sum_of_the_processing() -> None:
    def timing(wait: float, work: float) -> dict[str, float]:
        return {"t/await_results": wait, "t/postprocess_results": work, "t/postprocess_results_pct": 99.0}

    merged = merged_timings([timing(2.0, 0.5), timing(3.0, 0.5)], "t")
    assert merged == timing(3.0, 1.0) | {"t/postprocess_results_pct": 25.0}
    assert merged_timings([], "t") == {}
