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
from nemo_gym.http.deadline import Deadline
from nemo_gym.http.response import ClientResponse
from nemo_gym.http.transport import Transport

MAX_NUM_TRIES = 3
"""Tries of a call whose connection is refused, or of an endpoint that fails."""

RATE_LIMIT_ERROR_CODES = list(RATE_LIMIT_STATUSES)
RETRY_ERROR_CODES = list(RETRIED_STATUSES)


@dataclass(frozen=True)
class RetryPolicy:
    """When a call is made again."""

    attempts: int = MAX_NUM_TRIES
    """Tries of a call that fails; an answer of 429 is not counted among them."""
    base_delay_s: float = 0.5
    """First wait; doubles on each later try, half of it random."""
    max_delay_s: float = 30.0
    """Longest single wait, unless a server asks for a longer one."""
    total_s: float = 3600.0
    """No further try begins after this long, and to an endpoint outside none goes on; a server that asks for
    a longer wait than is left is not waited for. Generous: a long generation is one try."""
    statuses: tuple[int, ...] = ()
    """Answers that are worth another try: those of an endpoint outside. Empty between our own servers."""

    def delay_s(self, failures: int, retry_after_s: float | None) -> float:
        """How long to wait after so many failures in a row."""
        if retry_after_s is not None:
            return max(retry_after_s, self.base_delay_s)  # one that asks for none must not be flooded
        doublings = min(failures - 1, 64)  # far past any longest wait, and no overflow
        longest = min(self.base_delay_s * 2.0**doublings, self.max_delay_s)
        return longest * (0.5 + random.random() / 2)


CONNECT_ONLY = RetryPolicy(base_delay_s=0.1, total_s=10.0)
"""Between our own servers: only what never reached the other side is sent again."""

MODEL_ENDPOINT = RetryPolicy(statuses=RETRIED_STATUSES)
"""To an endpoint outside: its own failures and its rate limit too."""

_NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectionResetError,
    aiohttp.ConnectionTimeoutError,
)
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)

Read = Callable[[ClientResponse], ClientResponse]


class Clock(NamedTuple):
    """The time that retries go by."""

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
    """Send a call until it works, the tries are used up or the time is over; the last outcome counts.

    `read` makes the response of what came, as part of the try: what it raises counts as the connection's.
    """
    activity = current_activity.get() if policy.statuses else None
    limit = activity.limits.of(call.origin) if activity is not None and activity.limits is not None else None
    deadline = clock.now() + policy.total_s
    left_s = policy.total_s  # to the digit: deadlines of one length share a timer
    tries, failures = 0, 0
    while True:
        error: Exception | None = None
        response: ClientResponse | None = None
        began = await limit.acquire() if limit is not None else 0.0  # not part of the try: it may take long
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
        tries += response is None or response.status not in UNCOUNTED_STATUSES
        if activity is not None:
            activity.note_failure(failures, response.status if response is not None else error)
        delay = policy.delay_s(failures, retry_after_s(response))
        if tries >= policy.attempts or clock.now() + delay > deadline:
            if response is None:
                assert error is not None
                raise error
            return response
        await clock.sleep(delay)
        left_s = deadline - clock.now()


def _longest_s(call: Call, policy: RetryPolicy, activity: Activity | None, left_s: float) -> float | None:
    """The longest that one try may take.

    None between our servers, unless the caller says it: there one call may be a whole rollout.
    """
    if not policy.statuses:
        return call.timeout_s
    longest_s = call.timeout_s or (activity.call_timeout_s if activity is not None else None)
    return min(longest_s, left_s) if longest_s else left_s


def _release(limit: EndpointLimit, began: float, response: ClientResponse | None) -> None:
    overloaded = response is not None and response.status in OVERLOAD_STATUSES
    limit.release(began, overloaded=overloaded, answered=response is not None and response.ok)


def retry_after_s(response: ClientResponse | None) -> float | None:
    """The wait a server asks for: seconds, or a date; milliseconds where it says those too."""
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
