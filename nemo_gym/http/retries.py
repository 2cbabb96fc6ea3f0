"""Retries: when a call is sent again, and after which delay."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import aiohttp

from nemo_gym.activity import Activity, EndpointLimit, current_activity
from nemo_gym.failures import OVERLOAD_STATUSES, RATE_LIMIT_STATUSES, RETRIED_STATUSES, UNCOUNTED_STATUSES
from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse
from nemo_gym.http.deadline import Deadline
from nemo_gym.http.transport import Transport

MAX_NUM_TRIES = 3
"""How often a call is sent at most, if connections are refused or the endpoint fails."""

RATE_LIMIT_ERROR_CODES = list(RATE_LIMIT_STATUSES)
RETRY_ERROR_CODES = list(RETRIED_STATUSES)


@dataclass(frozen=True)
class RetryPolicy:
    """When a call is sent again."""

    max_tries: int = MAX_NUM_TRIES
    """How often a call that fails is sent at most; responses with status 429 are not counted."""
    base_delay_s: float = 0.5
    """Delay before the first retry; doubles before each later one, half of it random."""
    max_delay_s: float = 30.0
    """Longest delay, unless a server asks for a longer one."""
    total_s: float = 3600.0
    """No retry starts after this time, and a call to an endpoint ends at it. If a server asks for a longer
    delay than is left, there is no retry. Generous, because a long generation is one call."""
    statuses: tuple[int, ...] = ()
    """Statuses of responses after which a call is sent again. Empty between our own servers."""

    def delay_s(self, failures: int, retry_after_s: float | None) -> float:
        """The delay after this many failures in a row."""
        if retry_after_s is not None:
            return max(retry_after_s, self.base_delay_s)  # a server may ask for no delay
        doublings = min(failures - 1, 64)  # avoids an overflow; the delay has long reached its maximum
        longest = min(self.base_delay_s * 2.0**doublings, self.max_delay_s)
        return longest * (0.5 + random.random() / 2)


CONNECT_ONLY = RetryPolicy(base_delay_s=0.1, total_s=10.0)
"""Between our own servers: a call is sent again only if it never reached the server."""

MODEL_ENDPOINT = RetryPolicy(statuses=RETRIED_STATUSES)
"""To a model endpoint: a call is also sent again after a failure or a rate limit."""

_NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectionResetError,
    aiohttp.ConnectionTimeoutError,
)
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)

Read = Callable[[ClientResponse], ClientResponse]


class Clock(NamedTuple):
    """The clock of the retries."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


_REAL_TIME = Clock()


async def send_with_retries(
    transport: Transport,
    call: Call,
    policy: RetryPolicy,
    *,
    read: Read | None = None,
    clock: Clock = _REAL_TIME,
) -> ClientResponse:
    """Send a call until it succeeds or the policy allows no further retry.

    Returns the last response, or raises the last error.
    `read` converts the response. A connection error that it raises is retried like one of the transport.
    """
    activity = current_activity.get() if policy.statuses else None
    limit = activity.limits.of(call.origin) if activity is not None and activity.limits is not None else None
    deadline = clock.now() + policy.total_s
    left_s = policy.total_s  # not recomputed: deadlines with the same timeout share a timer
    sent, failures = 0, 0
    while True:
        error: Exception | None = None
        response: ClientResponse | None = None
        began = (
            await limit.acquire() if limit is not None else 0.0
        )  # waiting here does not count as time of the call
        try:
            with Deadline(_longest_s(call, policy, activity, left_s)):
                received = await transport.send(call)
                response = received if read is None else read(received)
        except _NEVER_SENT as failure:
            error = failure
        except (*_BROKEN, TimeoutError) as failure:
            if not policy.statuses:
                raise
            error = failure
        finally:
            if limit is not None:
                _release(limit, began, response)
        if response is not None and response.status not in policy.statuses:
            return response
        failures += 1
        sent += response is None or response.status not in UNCOUNTED_STATUSES
        if activity is not None:
            activity.note_failure(failures, response.status if response is not None else error)
        delay = policy.delay_s(failures, retry_after_s(response))
        if sent >= policy.max_tries or clock.now() + delay > deadline:
            if response is None:
                assert error is not None
                raise error
            return response
        await clock.sleep(delay)
        left_s = deadline - clock.now()


def _longest_s(call: Call, policy: RetryPolicy, activity: Activity | None, left_s: float) -> float | None:
    """The timeout of a call.

    None between our own servers unless the caller sets one, because such a call may be a whole rollout.
    """
    if not policy.statuses:
        return call.timeout_s
    longest_s = call.timeout_s or (activity.call_timeout_s if activity is not None else None)
    return min(longest_s, left_s) if longest_s else left_s


def _release(limit: EndpointLimit, began: float, response: ClientResponse | None) -> None:
    overloaded = response is not None and response.status in OVERLOAD_STATUSES
    limit.release(began, overloaded=overloaded, succeeded=response is not None and response.ok)


def retry_after_s(response: ClientResponse | None) -> float | None:
    """The delay that a server asks for: `Retry-After-Ms`, else `Retry-After` in seconds or as a date."""
    if response is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(response.headers.get("Retry-After-Ms", "")) / 1000)
    text = response.headers.get("Retry-After")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
