"""Dispatch: exactly one outcome per rollout, whatever its code does and however the run ends."""

import asyncio
from collections import Counter
from collections.abc import Callable

from nemo_gym.activity import Activity
from nemo_gym.failures import FailureKind
from nemo_gym.http import RetryPolicy
from nemo_gym.records import Key
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy, RunAttempt
from nemo_gym.rollout_collection.outcome import Failure, Outcome, PlannedRollout, Success
from tests.support.virtual_time import run_in_virtual_time

NEVER_AGAIN = RetryPolicy(max_tries=1)
MUCH_LATER = RetryPolicy(max_tries=3, base_delay_s=1000, max_delay_s=1000)
AGENT = {"name": "agent"}


def planned(number: int) -> PlannedRollout:
    return PlannedRollout(Key(number, 0), "agent", AGENT, b"{}")


def failure(rollout: PlannedRollout, kind: FailureKind = FailureKind.INFRASTRUCTURE) -> Failure:
    return Failure(rollout.key, AGENT, kind, "Error", "scripted")


def dispatched(
    attempt: RunAttempt,
    then: Callable[[Dispatcher, list[Outcome]], object],
    *,
    retry: RetryPolicy = NEVER_AGAIN,
) -> list[Outcome]:
    """Run five rollouts at once and return all outcomes; `then` is called with each outcome."""
    outcomes: list[Outcome] = []

    async def run() -> None:
        def record(outcome: Outcome) -> None:
            outcomes.append(outcome)
            then(dispatcher, outcomes)

        policy = RolloutPolicy(0.05, retry, teardown_s=0.5)
        dispatcher = Dispatcher(attempt, lambda rollout, _: Activity(str(rollout.key)), policy, record)
        for number in range(5):
            dispatcher.submit(planned(number))
        await asyncio.sleep(0.01)
        if retry is MUCH_LATER:
            dispatcher.abandon_all()
        while dispatcher.in_flight:
            dispatcher.changed.clear()
            async with asyncio.timeout(20):
                await dispatcher.changed.wait()

    run_in_virtual_time(run())
    return outcomes


def nothing(dispatcher: Dispatcher, outcomes: list[Outcome]) -> None: ...


def keys(outcomes: list[Outcome]) -> Counter[int]:
    return Counter(outcome.key.task for outcome in outcomes)


EACH_ONCE = Counter(range(5))


def test_one_outcome_per_rollout_even_if_recording_another_ends_the_run() -> None:
    async def fail_one(rollout: PlannedRollout, activity: Activity) -> Outcome:
        if rollout.key.task == 2:
            return failure(rollout)
        await asyncio.Event().wait()
        raise AssertionError

    outcomes = dispatched(fail_one, lambda dispatcher, _: dispatcher.abandon_all())
    assert keys(outcomes) == EACH_ONCE
    assert [outcome.kind for outcome in outcomes if isinstance(outcome, Failure)] == [
        "infrastructure",
        *["cancelled"] * 4,
    ]


def test_rollout_that_waits_for_a_retry_is_recorded_when_the_run_is_abandoned() -> None:
    async def fail(rollout: PlannedRollout, activity: Activity) -> Outcome:
        return failure(rollout)

    outcomes = dispatched(fail, lambda dispatcher, _: dispatcher.abandon_all(), retry=MUCH_LATER)
    assert keys(outcomes) == EACH_ONCE
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, Failure)} == {"infrastructure"}


def test_attempt_that_fails_otherwise_after_its_deadline_is_a_timeout() -> None:
    async def complain(rollout: PlannedRollout, activity: Activity) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return failure(rollout, FailureKind.DATA)
        raise AssertionError

    outcomes = dispatched(complain, nothing)
    assert keys(outcomes) == EACH_ONCE
    for outcome in outcomes:
        assert isinstance(outcome, Failure) and outcome.kind == "timeout"
        assert outcome.message == "not finished after 0.05 s; last activity: starting"
        assert outcome.data_attempts == 0


def test_rollout_that_finishes_during_its_clean_up_is_a_success() -> None:
    async def finish_late(rollout: PlannedRollout, activity: Activity) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Success(rollout.key, "agent", b"{}", {})
        raise AssertionError

    outcomes = dispatched(finish_late, nothing)
    assert keys(outcomes) == EACH_ONCE
    assert all(isinstance(outcome, Success) for outcome in outcomes)


def test_attempt_that_cancels_itself_is_a_data_failure() -> None:
    async def cancel(rollout: PlannedRollout, activity: Activity) -> Outcome:
        raise asyncio.CancelledError

    outcomes = dispatched(cancel, nothing)
    assert keys(outcomes) == EACH_ONCE
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, Failure)} == {"data"}
