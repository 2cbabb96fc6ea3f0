"""Dispatch: every task is settled exactly once, whatever its code does and whenever the run ends."""

import asyncio
from collections import Counter
from collections.abc import Callable

from nemo_gym.activity import Activity
from nemo_gym.failures import FailureKind
from nemo_gym.http import RetryPolicy
from nemo_gym.records import Key
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy, Try
from nemo_gym.rollout_collection.outcome import Failure, Outcome, Success, Task

NEVER_AGAIN = RetryPolicy(attempts=1)
MUCH_LATER = RetryPolicy(attempts=3, base_delay_s=1000, max_delay_s=1000)
AGENT = {"name": "agent"}


def task(number: int) -> Task:
    return Task(Key(number, 0), "agent", AGENT, b"{}")


def failure(task: Task, kind: FailureKind = FailureKind.INFRASTRUCTURE) -> Failure:
    return Failure(task.key, AGENT, kind, "Error", "scripted")


def dispatched(
    attempt: Try, then: Callable[[Dispatcher, list[Outcome]], object], *, retry: RetryPolicy = NEVER_AGAIN
) -> list[Outcome]:
    """Five tasks, all running; `then` is called with each outcome. Gives all outcomes."""
    outcomes: list[Outcome] = []

    async def run() -> None:
        def settle(outcome: Outcome) -> None:
            outcomes.append(outcome)
            then(dispatcher, outcomes)

        policy = RolloutPolicy(0.05, retry)
        dispatcher = Dispatcher(attempt, lambda task, _: Activity(str(task.key)), policy, settle)
        for number in range(5):
            dispatcher.submit(task(number))
        await asyncio.sleep(0.01)
        if retry is MUCH_LATER:
            dispatcher.abandon_all()
        while dispatcher.in_flight:
            dispatcher.changed.clear()
            async with asyncio.timeout(20):
                await dispatcher.changed.wait()

    asyncio.run(run())
    return outcomes


def nothing(dispatcher: Dispatcher, outcomes: list[Outcome]) -> None: ...


def keys(outcomes: list[Outcome]) -> Counter[int]:
    return Counter(outcome.key.task for outcome in outcomes)


EACH_ONCE = Counter(range(5))


def test_task_is_settled_once_although_settling_another_ends_the_run() -> None:
    async def fail_one(task: Task, activity: Activity) -> Outcome:
        if task.key.task == 2:
            return failure(task)
        await asyncio.Event().wait()
        raise AssertionError

    outcomes = dispatched(fail_one, lambda dispatcher, _: dispatcher.abandon_all())
    assert keys(outcomes) == EACH_ONCE
    assert [outcome.failure_class for outcome in outcomes if isinstance(outcome, Failure)] == [
        "infrastructure",
        *["cancelled"] * 4,
    ]


def test_task_that_waits_for_another_try_is_settled_when_the_run_is_left() -> None:
    async def fail(task: Task, activity: Activity) -> Outcome:
        return failure(task)

    outcomes = dispatched(fail, lambda dispatcher, _: dispatcher.abandon_all(), retry=MUCH_LATER)
    assert keys(outcomes) == EACH_ONCE
    assert {outcome.failure_class for outcome in outcomes if isinstance(outcome, Failure)} == {
        "infrastructure"
    }


def test_try_that_makes_another_error_of_its_cancellation_failed_by_its_deadline() -> None:
    async def complain(task: Task, activity: Activity) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return failure(task, FailureKind.DATA)
        raise AssertionError

    outcomes = dispatched(complain, nothing)
    assert keys(outcomes) == EACH_ONCE
    for outcome in outcomes:
        assert isinstance(outcome, Failure) and outcome.failure_class == "timeout"
        assert outcome.message == "not done after 0.05 s; it was starting"
        assert outcome.data_attempts == 0


def test_rollout_that_is_done_while_it_cleans_up_counts() -> None:
    async def finish_late(task: Task, activity: Activity) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Success(task.key, "agent", b"{}", {})
        raise AssertionError

    outcomes = dispatched(finish_late, nothing)
    assert keys(outcomes) == EACH_ONCE
    assert all(isinstance(outcome, Success) for outcome in outcomes)


def test_try_that_cancels_itself_is_a_failure_of_the_task() -> None:
    async def cancel(task: Task, activity: Activity) -> Outcome:
        raise asyncio.CancelledError

    outcomes = dispatched(cancel, nothing)
    assert keys(outcomes) == EACH_ONCE
    assert {outcome.failure_class for outcome in outcomes if isinstance(outcome, Failure)} == {"data"}
