import asyncio

import pytest

from nemo_gym.http import deadline
from nemo_gym.http.deadline import Deadline
from tests.support.virtual_time import run_in_virtual_time


def test_a_block_that_takes_too_long_ends_with_a_timeout() -> None:
    async def late() -> None:
        with Deadline(0.01):
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError, match=r"no response within 0\.01 s"):
        run_in_virtual_time(late())


def test_a_block_in_time_gives_its_result_and_leaves_no_timer() -> None:
    async def in_time() -> bool:
        with Deadline(0.02):
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        task = asyncio.current_task()
        return task is not None and not task.cancelling()

    is_unharmed, elapsed_s = run_in_virtual_time(in_time())
    assert is_unharmed and elapsed_s == pytest.approx(0.05)


def test_deadline_none_never_expires() -> None:
    async def patient() -> None:
        with Deadline(None):
            await asyncio.sleep(1e6)

    run_in_virtual_time(patient())


def test_cancellation_from_outside_is_not_turned_into_a_timeout() -> None:
    async def outer() -> None:
        async def inner() -> None:
            with Deadline(10):
                await asyncio.sleep(10)

        task = asyncio.create_task(inner())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_in_virtual_time(outer())


def test_a_cancellation_at_the_same_moment_as_the_deadline_wins() -> None:
    async def outer() -> None:
        async def inner() -> None:
            with Deadline(0.0):
                await asyncio.sleep(10)

        task = asyncio.create_task(inner())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.0, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    run_in_virtual_time(outer())


@pytest.mark.parametrize(("inner_s", "outer_s"), [(0.01, 10), (10, 0.01)])
def test_the_nearer_of_two_deadlines_ends_the_block(inner_s: float, outer_s: float) -> None:
    async def nested() -> str:
        try:
            with Deadline(outer_s):
                try:
                    with Deadline(inner_s):
                        await asyncio.sleep(20)
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "none"

    expired, elapsed_s = run_in_virtual_time(nested())
    assert expired == ("inner" if inner_s < outer_s else "outer")
    assert elapsed_s == pytest.approx(0.01)


def test_an_error_of_the_block_passes() -> None:
    async def failing() -> None:
        with Deadline(10):
            raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(failing())


def test_each_of_many_deadlines_expires_at_its_own_time() -> None:
    async def all_late() -> list[float]:
        loop = asyncio.get_running_loop()

        async def late(begin_s: float) -> float:
            await asyncio.sleep(begin_s)
            began = loop.time()
            with pytest.raises(TimeoutError), Deadline(0.1):
                await asyncio.sleep(10)
            return loop.time() - began

        return await asyncio.gather(*[late(number / 100) for number in range(20)])

    waited_s, _ = run_in_virtual_time(all_late())
    assert waited_s == [pytest.approx(0.1)] * 20


def test_deadline_met_in_time_does_not_delay_later_ones() -> None:
    async def mixed() -> list[str]:
        async def take(seconds: float) -> str:
            try:
                with Deadline(0.1):
                    await asyncio.sleep(seconds)
            except TimeoutError:
                return "late"
            return "in time"

        first = asyncio.create_task(take(0.01))
        await asyncio.sleep(0.05)
        return await asyncio.gather(first, take(5), take(0.01), take(5))

    outcomes, elapsed_s = run_in_virtual_time(mixed())
    assert outcomes == ["in time", "late", "in time", "late"]
    assert elapsed_s == pytest.approx(0.15)


def test_no_timer_outlives_its_block_whatever_its_length() -> None:
    async def run() -> int:
        for number in range(50):
            with Deadline(100 + number / 7):
                pass
        return sum(not handle.cancelled() for handle in asyncio.get_running_loop()._scheduled)

    assert asyncio.run(run()) == 0
    assert not deadline._queues


def test_closed_event_loop_leaves_nothing_behind() -> None:
    async def cut_off() -> None:
        async def waiting() -> None:
            with Deadline(100):
                await asyncio.sleep(100)

        task = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        assert deadline._queues and not task.done()

    asyncio.run(cut_off())  # cancels the remaining tasks
    assert not deadline._queues


def test_time_that_was_waited_does_not_count() -> None:
    async def run() -> float:
        loop, waits = asyncio.get_running_loop(), [0.0]
        began = loop.time()
        loop.call_later(3.0, waits.__setitem__, 0, 4.0)
        loop.call_later(8.0, waits.__setitem__, 0, 6.0)
        with pytest.raises(TimeoutError), Deadline(5.0, lambda: waits[0]):
            await asyncio.Event().wait()
        return loop.time() - began

    took_s, _ = run_in_virtual_time(run())
    assert took_s == pytest.approx(11.0, abs=0.1)
    assert not deadline._queues
