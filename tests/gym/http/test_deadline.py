import asyncio

import pytest

from nemo_gym.http.deadline import Deadline


def test_a_block_that_takes_too_long_ends_with_a_timeout() -> None:
    async def late() -> None:
        with Deadline(0.01):
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError, match=r"no answer in 0\.01 s"):
        asyncio.run(late())


def test_a_block_in_time_gives_its_result_and_leaves_no_timer() -> None:
    async def in_time() -> bool:
        with Deadline(0.02):
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        task = asyncio.current_task()
        return task is not None and not task.cancelling()

    assert asyncio.run(in_time())


def test_no_deadline_is_no_deadline() -> None:
    async def patient() -> None:
        with Deadline(None):
            await asyncio.sleep(0.01)

    asyncio.run(patient())


def test_a_cancellation_from_outside_stays_one() -> None:
    async def outer() -> None:
        async def inner() -> None:
            with Deadline(10):
                await asyncio.sleep(10)

        task = asyncio.create_task(inner())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(outer())


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

    asyncio.run(outer())


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

    assert asyncio.run(nested()) == ("inner" if inner_s < outer_s else "outer")


def test_an_error_of_the_block_passes() -> None:
    async def failing() -> None:
        with Deadline(10):
            raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(failing())
