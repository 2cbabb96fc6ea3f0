import asyncio
from itertools import count

import pytest

from nemo_gym.activity import Activity, EndpointLimit, EndpointLimits, activity_from


def test_an_activity_shows_the_call_the_retry_and_the_last_error() -> None:
    activity = Activity("3:0")
    for _ in range(7):
        before = activity.begin("/v1/responses")
        activity.end(before)
    activity.begin("/v1/responses")
    activity.note_failure(2, 429)
    activity.since -= 312
    assert activity.waits_for() == "312 s in model call 8, retry 2 after 429"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/verify", "0 s in verification"),
        ("/seed_session", "0 s in seeding"),
        ("/run", "0 s in the agent"),
        ("/get_weather", "0 s in tool get_weather"),
    ],
)
def test_an_activity_names_its_step(path: str, shown: str) -> None:
    activity = Activity("0:0")
    activity.begin(path)
    assert activity.waits_for() == shown


def test_outer_call_continues_after_a_nested_call() -> None:
    activity = Activity("0:0")
    activity.begin("/run")
    activity.end(activity.begin("/v1/responses"))
    assert activity.waits_for() == "0 s in the agent"


def test_an_activity_travels_as_a_header() -> None:
    sent = Activity("5:1", 30.0, EndpointLimits(64), 2)
    limits = EndpointLimits(0)
    received = activity_from(sent.header(), limits)
    assert received is not None
    assert (received.rollout, received.call_timeout_s, received.attempt) == ("5:1", 30.0, 2)
    assert received.limits is limits and limits.ceiling == 64 and received.left_s() is None


@pytest.mark.parametrize("header", ["", "nonsense", "1:0 x 0 0 0", "1:0 1 0 0"])
def test_unrelated_header_is_ignored(header: str) -> None:
    assert activity_from(header) is None


def test_a_limit_doubles_until_the_first_overload_then_grows_by_one() -> None:
    async def grow() -> None:
        limit = EndpointLimit(1000)
        before = limit.limit
        began = [await limit.acquire() for _ in range(int(before))]
        for one in began:
            limit.release(one, overloaded=False, succeeded=True)
            await limit.acquire()  # so that the limit stays reached
        assert limit.limit == 2 * before
        limit.release(await full(limit), overloaded=True, succeeded=False)
        lowered = limit.limit
        assert lowered == pytest.approx(2 * before * EndpointLimit.DECREASE)
        limit.in_flight = int(lowered)
        for _ in range(int(lowered)):
            limit.release(0.0, overloaded=False, succeeded=True)
            limit.in_flight += 1
        assert lowered < limit.limit < lowered + 1.1

    async def full(limit: EndpointLimit) -> float:
        began = 0.0
        while limit.in_flight < int(limit.limit):
            began = await limit.acquire()
        return began

    asyncio.run(grow())


def test_simultaneous_overloads_count_as_one() -> None:
    async def refused() -> float:
        limit = EndpointLimit(64)
        began = [await limit.acquire() for _ in range(16)]
        for one in began:
            limit.release(one, overloaded=True, succeeded=False)
        return limit.limit

    assert asyncio.run(refused()) == pytest.approx(16 * EndpointLimit.DECREASE)


def test_call_cancelled_while_waiting_takes_no_slot() -> None:
    async def give_up() -> None:
        limit = EndpointLimit(1)
        began = await limit.acquire()
        impatient = asyncio.create_task(limit.acquire())
        patient = asyncio.create_task(limit.acquire())
        await asyncio.sleep(0)
        limit.release(began, overloaded=False, succeeded=True)
        impatient.cancel()  # after its slot was granted
        await asyncio.wait_for(patient, 30)
        assert limit.in_flight == 1

    asyncio.run(give_up())


def test_a_later_run_may_raise_the_ceiling_of_a_server_process() -> None:
    limits = EndpointLimits(0)
    assert activity_from("0:0 1 0 8 0 - 1 0.5", limits) is not None
    assert limits.of("http://endpoint/v1").ceiling == 8
    assert activity_from("0:0 1 0 512 0 - 1 0.5", limits) is not None
    assert limits.of("http://endpoint/v1").ceiling == 512


def test_calls_are_served_in_order_of_arrival() -> None:
    async def queue() -> tuple[list[int], list[int]]:
        limit = EndpointLimit(16)
        numbers = count()
        requested: list[int] = []
        served: list[int] = []

        async def rollout() -> None:
            for _ in range(4):  # the next call starts as soon as the last one ends
                number = next(numbers)
                requested.append(number)
                began = await limit.acquire()
                served.append(number)
                await asyncio.sleep(0)
                limit.release(began, overloaded=False, succeeded=False)

        await asyncio.gather(*[rollout() for _ in range(128)])
        return requested, served

    requested, served = asyncio.run(queue())
    assert served == requested


def test_slot_of_a_cancelled_waiting_call_goes_to_the_next() -> None:
    async def give_up() -> None:
        limit = EndpointLimit(1)
        began = await limit.acquire()
        first, second, third = [asyncio.create_task(limit.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()  # while it is waiting
        await asyncio.sleep(0)
        limit.release(began, overloaded=False, succeeded=True)
        second.cancel()  # its slot is granted, but the task has not run yet
        async with asyncio.timeout(30):
            began = await third
        limit.release(began, overloaded=False, succeeded=True)
        assert limit.in_flight == 0
        async with asyncio.timeout(30):
            await limit.acquire()

    asyncio.run(give_up())
