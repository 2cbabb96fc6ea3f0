"""Tries of a call within a rollout: it waits for an endpoint that is down, and has one budget of failures."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import pytest

from nemo_gym.activity import Activity, current_activity
from nemo_gym.endpoint_health import FEWEST_REFUSED, Endpoint, EndpointHealth, RunEndpoints, Wait
from nemo_gym.http import (
    CONNECT_ONLY,
    FAILURE_COUNT_HEADER,
    FAILURE_KIND_HEADER,
    MODEL_ENDPOINT,
    ClientResponse,
    RetryPolicy,
    send_with_retries,
)
from nemo_gym.http.call import Call, parse_call
from nemo_gym.http.client_response import GivenUpError
from nemo_gym.http.tries import Clock
from nemo_gym.undocumented.aiohttp_internals import connector_error

CALL = parse_call("POST", "http://127.0.0.1:1/v1/responses", json={})
ENDPOINT = Endpoint("policy_model", "http://127.0.0.1:1/v1")
REFUSED = connector_error("127.0.0.1", 1, ConnectionRefusedError(111, "refused"))
BROKEN = aiohttp.ServerDisconnectedError()
KEY = ClientResponse(403, (), b'{"error": {"message": "not this prompt"}}')

Step = int | ClientResponse | Exception


def nothing(health: EndpointHealth, now: float) -> None: ...


def others_succeed(health: EndpointHealth, now: float) -> None:
    health.succeeded(CALL.url, now)


@dataclass
class Rollout:
    """Makes one call of a rollout; `meanwhile` is called during each delay."""

    failures_left: int = 6
    meanwhile: Callable[[EndpointHealth, float], None] = nothing
    policy: RetryPolicy = MODEL_ENDPOINT
    now: float = 100.0
    delays: list[float] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self.endpoints = RunEndpoints("run")
        self.health = self.endpoints.of(ENDPOINT)
        self.activity = Activity(
            "0:0", endpoints=self.endpoints, failures_left=self.failures_left, backoff_s=2.0
        )

    def play(self, *script: Step) -> ClientResponse | Exception:
        """The result of the call; the last step repeats."""
        self._script = script
        return asyncio.run(self._run())

    async def _run(self) -> ClientResponse | Exception:
        current_activity.set(self.activity)
        clock = Clock(lambda: self.now, self._sleep)
        try:
            return await send_with_retries(self, CALL, self.policy, endpoint=ENDPOINT, clock=clock)
        except aiohttp.ClientError as error:
            return error

    async def _sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        self.now += delay_s / 2
        self.meanwhile(self.health, self.now)
        self.now += delay_s / 2

    async def send(self, call: Call) -> ClientResponse:
        step = self._script[min(self.calls, len(self._script) - 1)]
        self.calls += 1
        if isinstance(step, Exception):
            raise step
        return ClientResponse(step, (), b"{}", url=call.url) if isinstance(step, int) else step


@pytest.mark.parametrize("failure", [429, 502, 503, 504, 529, REFUSED], ids=str)
def test_unavailable_endpoint_is_waited_for_without_limit_and_without_charge(failure: Step) -> None:
    rollout = Rollout(failures_left=1)
    result = rollout.play(*[failure] * 500, 200)
    assert isinstance(result, ClientResponse) and result.ok
    assert rollout.calls == 501 and max(rollout.delays) <= 30


@pytest.mark.parametrize("failure", [500, 520, BROKEN, TimeoutError()], ids=str)
def test_failures_of_a_call_are_limited_by_those_that_the_rollout_may_have(failure: Step) -> None:
    assert isinstance(Rollout(failures_left=4).play(failure, failure, failure, 200), ClientResponse)
    rollout = Rollout(failures_left=4)
    result = rollout.play(failure)
    assert rollout.calls == 4
    if isinstance(result, ClientResponse):
        assert result.headers[FAILURE_COUNT_HEADER] == "4"
    else:
        assert isinstance(result, GivenUpError) and result.failure_count == 4 and not result.is_outage


def test_failures_that_count_have_the_delays_of_the_rollout() -> None:
    rollout = Rollout()
    rollout.play(500)
    for delay, longest in zip(rollout.delays, [2, 4, 8, 16, 32], strict=True):
        assert longest / 2 <= delay <= longest


@pytest.mark.parametrize("failure", [503, REFUSED], ids=str)
def test_call_that_fails_while_others_succeed_is_charged(failure: Step) -> None:
    rollout = Rollout(failures_left=3, meanwhile=others_succeed)
    rollout.play(failure)
    assert rollout.calls == 4, "the first failure is not charged"


def test_rate_limit_is_never_charged() -> None:
    rollout = Rollout(failures_left=1, meanwhile=others_succeed)
    assert isinstance(rollout.play(*[429] * 50, 200), ClientResponse) and rollout.calls == 51


def test_call_that_was_charged_is_charged_also_when_only_such_calls_are_left() -> None:
    successes = iter([True])

    def one_success(health: EndpointHealth, now: float) -> None:
        if next(successes, False):
            health.succeeded(CALL.url, now)

    rollout = Rollout(failures_left=4, meanwhile=one_success)
    rollout.play(503)
    assert rollout.calls == 5


def test_refusal_on_a_route_that_has_worked_is_waited_for() -> None:
    rollout = Rollout(failures_left=1)
    assert rollout.play(KEY) is KEY, "before any success, the caller decides"
    rollout.health.succeeded(CALL.url, 100.0)
    for _ in range(FEWEST_REFUSED):
        rollout.health.note_failure(Wait("401"), 200.0)
    rollout.now, rollout.calls = 200.0, 0
    result = rollout.play(KEY, KEY, KEY, 200)
    assert isinstance(result, ClientResponse) and result.ok


def test_call_that_keeps_being_refused_when_no_other_waits_is_a_data_failure() -> None:
    rollout = Rollout(failures_left=2)
    rollout.health.succeeded(CALL.url, 50.0)
    result = rollout.play(KEY)
    assert isinstance(result, ClientResponse) and result.status == 403
    assert result.headers[FAILURE_KIND_HEADER] == "data" and rollout.calls == 3


def test_call_that_is_refused_while_others_succeed_is_a_data_failure() -> None:
    rollout = Rollout(failures_left=2, meanwhile=others_succeed)
    rollout.health.succeeded(CALL.url, 50.0)
    result = rollout.play(KEY)
    assert isinstance(result, ClientResponse) and result.status == 403
    assert result.headers[FAILURE_KIND_HEADER] == "data" and rollout.calls == 3


@pytest.mark.parametrize("asked", ["inf", "86400"])
def test_delay_that_an_endpoint_asks_for_is_limited(asked: str) -> None:
    rollout = Rollout()
    rollout.play(ClientResponse(429, (("Retry-After", asked),), b""), 200)
    assert rollout.delays == [300.0] and all(map(math.isfinite, rollout.delays))


def test_one_of_several_replicas_is_given_up() -> None:
    rollout = Rollout(policy=RetryPolicy(statuses=MODEL_ENDPOINT.statuses, unreachable_tries=3))
    result = rollout.play(REFUSED)
    assert isinstance(result, GivenUpError) and result.is_outage and rollout.calls == 3


def test_own_server_that_restarts_is_waited_for_and_a_broken_call_is_not_repeated() -> None:
    rollout = Rollout(failures_left=1, policy=CONNECT_ONLY)
    assert isinstance(rollout.play(*[REFUSED] * 50, 200), ClientResponse)
    assert max(rollout.delays) <= 5
    broken = Rollout(policy=CONNECT_ONLY)
    assert broken.play(BROKEN) is BROKEN and broken.calls == 1


def test_calls_that_wait_are_reported_by_cause_and_leave_nothing_behind() -> None:
    rollout = Rollout()
    causes = []

    def look(health: EndpointHealth, now: float) -> None:
        causes.append(health.report(now).waiting)

    rollout.meanwhile = look
    rollout.play(REFUSED, 503, 500, 200)
    assert causes == [{"connection refused": 1}, {"503": 1}, {}]
    report = rollout.health.report(rollout.now)
    assert report.waiting == {} and report.down_s is None and report.successes == 1
