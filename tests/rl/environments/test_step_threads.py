"""Threads of plain environments: limits, sharing, and steps that hang."""

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from nemo_rl.environments.step_threads import StepThreads, threads_of
from nemo_rl.experience.failures import RolloutTimeout
from tests.support.commands import wait_until
from tests.support.waiting import until

LONG_S = 30.0
"""Anything that takes longer hangs."""


def run(play: Callable[[StepThreads], Any], idle_s: float = LONG_S) -> Any:
    async def playing() -> Any:
        async with asyncio.timeout(LONG_S):
            return await play(StepThreads("environment under test", idle_s))

    return asyncio.run(playing())


def test_time_in_the_queue_does_not_count_towards_the_limit() -> None:
    released, finished = threading.Event(), threading.Event()
    limit_s = 0.05

    async def play(threads: StepThreads) -> list[str]:
        first = asyncio.create_task(threads.run(released.wait))
        queued = [asyncio.create_task(threads.run(lambda: "played", limit_s=limit_s)) for _ in range(3)]
        last = asyncio.create_task(threads.run(finished.set))
        await asyncio.sleep(3 * limit_s)  # the time in the queue
        released.set()
        assert finished.wait(LONG_S)  # the event loop sees the steps again when they are done
        await asyncio.gather(first, last)
        return list(await asyncio.gather(*queued))

    assert run(play) == ["played"] * 3


def test_step_that_hangs_past_its_limit_does_not_block_others() -> None:
    released = threading.Event()

    async def play(threads: StepThreads) -> Any:
        hanging = threads.run(released.wait, limit_s=0.05)
        later = threads.run(lambda: "played", limit_s=LONG_S)
        return await asyncio.gather(hanging, later, return_exceptions=True)

    try:
        hung, played = run(play)
    finally:
        released.set()
    assert isinstance(hung, RolloutTimeout) and "longer than 0.05 s" in str(hung)
    assert played == "played"


def test_result_does_not_wait_for_a_later_slow_step() -> None:
    released = threading.Event()

    async def play(threads: StepThreads) -> str:
        quick = asyncio.create_task(threads.run(lambda: "quick"))
        slow = asyncio.create_task(threads.run(released.wait))
        try:
            return await quick
        finally:
            released.set()
            await slow

    assert run(play) == "quick"


def test_error_of_a_step_is_raised_and_stop_iteration_is_wrapped() -> None:
    error = LookupError("no such page")

    def fail() -> None:
        raise error

    with pytest.raises(LookupError) as failed:
        run(lambda threads: threads.run(fail))
    assert failed.value is error
    with pytest.raises(RuntimeError, match="StopIteration") as ended:
        run(lambda threads: threads.run(next, iter(())))
    assert isinstance(ended.value.__cause__, StopIteration)


def test_cancelled_step_that_has_not_begun_is_not_run() -> None:
    made: list[str] = []
    begun, released = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        released.wait(LONG_S)

    async def play(threads: StepThreads) -> None:
        first = asyncio.create_task(threads.run(hold))
        second = asyncio.create_task(threads.run(made.append, "second"))
        await until(begun.is_set)  # both steps have been sent to the thread
        second.cancel()
        await asyncio.wait({second})
        released.set()
        await first
        await threads.run(made.append, "third")

    run(play)
    assert made == ["third"]


@pytest.mark.parametrize("most", [1, 3])
def test_largest_allowed_number_of_steps_run_at_once(most: int) -> None:
    lock, running, highest = threading.Lock(), 0, 0
    together = threading.Barrier(most)

    def step() -> None:
        nonlocal running, highest
        with lock:
            running += 1
            highest = max(highest, running)
        together.wait(LONG_S)
        time.sleep(0.01)  # one step too many would begin meanwhile
        with lock:
            running -= 1

    async def play(threads: StepThreads) -> None:
        threads.allow(most)
        threads.allow(1)
        await asyncio.gather(*(threads.run(step) for _ in range(12)))

    run(play)
    assert highest == most


def test_idle_threads_end_and_new_work_starts_new_ones() -> None:
    threads = StepThreads("environment that rests", idle_s=0.02)

    def alive() -> int:
        return sum(thread.name == "environment that rests" for thread in threading.enumerate())

    for _ in range(2):
        assert asyncio.run(threads.run(lambda: "played")) == "played"
        assert wait_until(lambda: alive() == 0, LONG_S)


class Environment:
    pass


def test_users_of_an_environment_share_its_threads_while_it_exists() -> None:
    one, other = Environment(), Environment()
    assert threads_of(one) is threads_of(one)
    assert threads_of(one) is not threads_of(other)
    threads = weakref.ref(threads_of(one))
    del one
    assert wait_until(lambda: (gc.collect(), threads() is None)[1], LONG_S)


def test_environment_can_be_collected_while_its_thread_is_idle() -> None:
    class Stepped:
        def step(self) -> str:
            return "played"

    environment = Stepped()
    gone = weakref.ref(environment)
    threads = StepThreads("environment that is collected", idle_s=10 * LONG_S)
    asyncio.run(threads.run(environment.step))
    del environment
    assert wait_until(lambda: (gc.collect(), gone() is None)[1], LONG_S)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons warn about threads at a fork
def test_environment_that_was_stepped_before_a_fork_can_be_stepped_in_the_child() -> None:
    threads = StepThreads("environment of two processes")
    assert asyncio.run(threads.run(os.getpid)) == os.getpid()
    child = os.fork()
    if not child:
        try:
            os._exit(0 if asyncio.run(asyncio.wait_for(threads.run(os.getpid), LONG_S)) == os.getpid() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_object_without_weak_references_can_be_stepped() -> None:
    assert asyncio.run(threads_of(3).run(lambda: "played")) == "played"


def test_closed_loops_are_not_kept_alive() -> None:
    threads = StepThreads("environment of several loops", idle_s=0.02)
    loops: list[Any] = []

    async def play() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await threads.run(lambda: None)

    asyncio.run(play())
    assert wait_until(lambda: (gc.collect(), loops[0]() is None)[1], LONG_S)
