import asyncio
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import orjson
import pytest

from nemo_gym.http import (
    CONNECT_ONLY,
    MODEL_ENDPOINT,
    RATE_LIMIT_ERROR_CODES,
    RETRY_ERROR_CODES,
    ClientResponse,
    RetryPolicy,
    request,
    send_with_retries,
)
from nemo_gym.http.call import Call, parse_call
from nemo_gym.http.tries import Clock
from tests.gym.http.raw_server import raw_response, serving
from tests.support.commands import free_port

QUICK = RetryPolicy(base_delay_s=0.001, statuses=MODEL_ENDPOINT.statuses)
QUICK_CONNECT = RetryPolicy(base_delay_s=0.001)
CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"
REFUSED = aiohttp.ClientConnectionError("refused")
CALL = parse_call("POST", "http://127.0.0.1:1/v1/responses", json={})


@dataclass
class FakeTime:
    """A clock that advances only while `sleep` is awaited."""

    now: float = 100.0
    waits: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        self.now += delay_s


@dataclass
class Outcome:
    last: ClientResponse | Exception
    calls: int
    waits: list[float]


@dataclass
class ScriptedTransport:
    """Each item of `script` is the result of one call; the last item repeats."""

    script: tuple[int | ClientResponse | Exception, ...]
    calls: int = 0

    async def send(self, call: Call) -> ClientResponse:
        step = self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1
        if isinstance(step, Exception):
            raise step
        return ClientResponse(step, (), b"") if isinstance(step, int) else step


def play(policy: RetryPolicy, *script: int | ClientResponse | Exception) -> Outcome:
    """Send one call; its transport follows `script`."""
    time, transport = FakeTime(), ScriptedTransport(script)

    async def run() -> ClientResponse | Exception:
        try:
            return await send_with_retries(transport, CALL, policy, clock=Clock(time.clock, time.sleep))
        except aiohttp.ClientError as error:
            return error

    return Outcome(asyncio.run(run()), transport.calls, time.waits)


def status_of(outcome: Outcome) -> int:
    assert isinstance(outcome.last, ClientResponse)
    return outcome.last.status


def limited(status: int, retry_after: str) -> ClientResponse:
    return ClientResponse(status, (("Retry-After", retry_after),), b"")


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520, 529])
def test_endpoint_failure_is_tried_again(status: int) -> None:
    outcome = play(MODEL_ENDPOINT, status, status, 200)
    assert (status_of(outcome), outcome.calls, len(outcome.waits)) == (200, 3, 2)


def test_the_published_retry_codes_are_the_ones_used() -> None:
    assert RATE_LIMIT_ERROR_CODES == [429, 502, 503, 504, 520, 529]
    assert sorted(RETRY_ERROR_CODES) == sorted(MODEL_ENDPOINT.statuses) == [429, 500, 502, 503, 504, 520, 529]


@pytest.mark.parametrize(
    "error", [REFUSED, aiohttp.ServerDisconnectedError(), aiohttp.ClientPayloadError("cut off")]
)
def test_broken_connection_to_an_endpoint_is_tried_again(error: Exception) -> None:
    outcome = play(MODEL_ENDPOINT, error, error, 200)
    assert (status_of(outcome), outcome.calls) == (200, 3)


def test_last_response_is_returned_when_retries_are_used_up() -> None:
    outcome = play(MODEL_ENDPOINT, 500, 502, 503, 200)
    assert (status_of(outcome), outcome.calls) == (503, 3)


def test_last_error_is_raised_when_retries_are_used_up() -> None:
    last = aiohttp.ClientConnectionError("the third")
    outcome = play(MODEL_ENDPOINT, 503, REFUSED, last, 200)
    assert (outcome.last, outcome.calls) == (last, 3)


@pytest.mark.parametrize("status", [200, 201, 204, 301, 400, 401, 403, 404, 409, 422, 501])
def test_other_statuses_are_returned_without_retries(status: int) -> None:
    outcome = play(MODEL_ENDPOINT, status)
    assert (status_of(outcome), outcome.calls, outcome.waits) == (status, 1, [])


@pytest.mark.parametrize("status", [429, 500, 503])
def test_error_status_between_our_servers_is_a_response(status: int) -> None:
    assert play(CONNECT_ONLY, status).calls == 1


def test_delays_double_up_to_the_maximum_and_half_of_each_is_random() -> None:
    policy = RetryPolicy(max_tries=8, base_delay_s=1.0, max_delay_s=10.0, statuses=(503,))
    waits = play(policy, 503).waits
    for wait, longest in zip(waits, [1, 2, 4, 8, 10, 10, 10], strict=True):
        assert longest / 2 <= wait <= longest
    assert len({wait / longest for wait, longest in zip(waits, [1, 2, 4, 8, 10, 10, 10], strict=True)}) > 1


def test_rate_limit_does_not_use_up_the_retries() -> None:
    outcome = play(MODEL_ENDPOINT, *[429] * 10, 503, *[429] * 5, 503, 200)
    assert (status_of(outcome), outcome.calls) == (200, 18)


def test_endless_rate_limit_ends_at_the_deadline() -> None:
    policy = RetryPolicy(total_s=60.0, base_delay_s=1.0, max_delay_s=8.0, statuses=(429,))
    outcome = play(policy, 429)
    assert status_of(outcome) == 429
    assert 60.0 - 8.0 < sum(outcome.waits) <= 60.0


def test_a_wait_that_would_pass_the_deadline_is_not_begun() -> None:
    policy = RetryPolicy(total_s=5.0, statuses=(503,))
    outcome = play(policy, limited(503, "6"), 200)
    assert (status_of(outcome), outcome.calls, outcome.waits) == (503, 1, [])


@pytest.mark.parametrize("status", [429, 503])
def test_delay_requested_in_seconds_is_obeyed(status: int) -> None:
    assert play(MODEL_ENDPOINT, limited(status, "7"), 200).waits == [7.0]


def test_delay_requested_as_a_date_is_obeyed() -> None:
    then = datetime.now(UTC) + timedelta(seconds=20)
    (wait,) = play(MODEL_ENDPOINT, limited(429, format_datetime(then, usegmt=True)), 200).waits
    assert 15 < wait <= 20


@pytest.mark.parametrize("status", [429, 503])
def test_retry_waits_for_the_delay_that_the_server_requests(status: int) -> None:
    assert play(MODEL_ENDPOINT, limited(status, "120"), 200).waits == [120.0]


@pytest.mark.parametrize("retry_after", ["86400", "inf"])
def test_requested_delay_beyond_the_deadline_ends_the_call(retry_after: str) -> None:
    outcome = play(MODEL_ENDPOINT, limited(429, retry_after), 200)
    assert status_of(outcome) == 429
    assert outcome.waits == []


@pytest.mark.parametrize("retry_after", ["0", "-5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_requested_delay_of_zero_still_backs_off(retry_after: str) -> None:
    outcome = play(RetryPolicy(total_s=30.0, statuses=(429,)), limited(429, retry_after))
    assert status_of(outcome) == 429
    assert outcome.calls <= 62


@pytest.mark.parametrize("retry_after", ["soon", "", "Wed, 99 Oct 2015"])
def test_unreadable_retry_after_is_ignored(retry_after: str) -> None:
    (wait,) = play(MODEL_ENDPOINT, limited(503, retry_after), 200).waits
    assert 0.25 <= wait <= 0.5


def test_backoff_after_many_failures_is_the_maximum_delay() -> None:
    assert 15 <= MODEL_ENDPOINT.delay_s(5000, None) <= 30


def test_error_of_the_program_is_never_tried_again() -> None:
    transport = ScriptedTransport((ValueError("a bug"),))
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(send_with_retries(transport, CALL, MODEL_ENDPOINT))
    assert transport.calls == 1


def test_refused_connection_is_retried_then_raised() -> None:
    with pytest.raises(aiohttp.ClientConnectorError):
        asyncio.run(request("POST", f"http://127.0.0.1:{free_port()}/x", json={}, retry=QUICK_CONNECT))


def test_server_that_comes_up_late_is_reached() -> None:
    async def run() -> int:
        port = free_port()
        patient = RetryPolicy(max_tries=200, base_delay_s=0.01, max_delay_s=0.01)
        call = asyncio.create_task(request("POST", f"http://127.0.0.1:{port}/x", json={}, retry=patient))
        await asyncio.sleep(0)
        async with serving(raw_response(200), port=port) as server:
            assert (await call).status == 200
            return len(server.requests)

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize("size", [10, 5_000_000], ids=["small", "large"])
def test_request_that_reached_one_of_our_servers_is_not_sent_twice(size: int) -> None:
    async def run() -> None:
        async with serving(None) as server:
            with pytest.raises(aiohttp.ClientConnectionError):
                await request("POST", server.url, data=b"x" * size, retry=QUICK_CONNECT)
            assert len(server.requests) == 1

    asyncio.run(run())


def test_large_request_refused_before_it_was_read_is_not_sent_twice() -> None:
    async def run() -> int:
        connections = 0

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(aiohttp.ClientConnectionError):
                await request("POST", url, data=b"x" * 50_000_000, retry=QUICK_CONNECT)
        return connections

    assert asyncio.run(run()) == 1


def test_large_body_is_sent_completely_on_every_retry() -> None:
    body = b"0123456789" * 300_000

    async def run() -> None:
        async with serving(None, raw_response(200)) as server:
            await request("POST", server.url, data=body, retry=QUICK)
            assert [sent.partition(b"\r\n\r\n")[2] for sent in server.requests] == [body, body]

    asyncio.run(run())


def test_request_on_a_reused_connection_that_breaks_is_not_sent_twice() -> None:
    async def run() -> None:
        async with serving(raw_response(200), None) as server:
            assert (await request("POST", server.url, json={})).ok
            with pytest.raises(aiohttp.ClientConnectionError):
                await request("POST", server.url, json={}, retry=QUICK_CONNECT)
            assert len(server.requests) == 2

    asyncio.run(run())


@pytest.mark.parametrize("broken", [None, CUT_OFF], ids=["gone", "cut"])
def test_call_is_retried_if_the_endpoint_drops_the_connection(broken: bytes | None) -> None:
    async def run() -> None:
        async with serving(broken, broken, raw_response(200, b'{"a":1}')) as server:
            response = await request("POST", server.url, json={}, retry=QUICK)
            assert await response.json() == {"a": 1}
            assert len(server.requests) == 3

    asyncio.run(run())


def test_truncated_response_between_our_servers_is_an_error() -> None:
    async def run() -> None:
        async with serving(CUT_OFF) as server:
            with pytest.raises(aiohttp.ClientPayloadError):
                await request("POST", server.url, json={}, retry=QUICK_CONNECT)
            assert len(server.requests) == 1

    asyncio.run(run())


def test_request_sends_json_headers_cookies_and_parameters() -> None:
    async def run() -> bytes:
        async with serving(raw_response(200)) as server:
            await request(
                "POST",
                f"{server.url}/path",
                json={"text": "é"},
                headers={"X-Mine": "1"},
                cookies={"a": "1", "b": "two words"},
                params={"q": "x y"},
            )
            return server.requests[0]

    head, _, body = asyncio.run(run()).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].startswith((b"POST /path?q=x+y ", b"POST /path?q=x%20y "))
    assert {b"X-Mine: 1", b'Cookie: a=1; b="two words"', b"Content-Type: application/json"} <= set(lines)
    assert orjson.loads(body) == {"text": "é"}


def test_content_type_of_the_caller_is_sent_once() -> None:
    async def run() -> bytes:
        async with serving(raw_response(200)) as server:
            await request("POST", server.url, json={}, headers={"content-type": "application/x+json"})
            return server.requests[0]

    assert re.findall(rb"(?i)content-type: (.*)\r\n", asyncio.run(run())) == [b"application/x+json"]


def test_slow_response_is_a_timeout() -> None:
    async def run() -> None:
        never = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await never.wait()
            writer.close()

        async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TimeoutError):
                await request("GET", f"http://127.0.0.1:{port}", timeout_s=0.05)
            never.set()

    asyncio.run(run())


@dataclass
class SlowTransport:
    seconds: float

    async def send(self, call: Call) -> ClientResponse:
        await asyncio.sleep(self.seconds)
        return ClientResponse(200, (), b"")


def test_endpoint_that_never_responds_is_given_up_at_the_deadline() -> None:
    policy = RetryPolicy(total_s=0.05, statuses=MODEL_ENDPOINT.statuses)
    with pytest.raises(TimeoutError):
        asyncio.run(send_with_retries(SlowTransport(60), CALL, policy))


def test_one_call_between_our_servers_may_outlast_the_time_for_retries() -> None:
    assert asyncio.run(send_with_retries(SlowTransport(0.1), CALL, RetryPolicy(total_s=0.01))).ok


def test_redirect_is_returned_as_a_response() -> None:
    async def run() -> int:
        async with serving(raw_response(307, b"", "Location: /elsewhere")) as raw:
            return (await request("POST", raw.url, json={})).status

    assert asyncio.run(run()) == 307
