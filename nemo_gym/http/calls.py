"""Calls: the only place that sends an HTTP request, and when it sends it again."""

import asyncio
import random
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from io import BytesIO
from typing import Any

import aiohttp
from multidict import CIMultiDict, istr

from nemo_gym.activity import Activity, EndpointLimit, current_activity
from nemo_gym.codec import encode_json
from nemo_gym.errors import HeadServerUnreachableError
from nemo_gym.failures import OVERLOAD_STATUSES, RATE_LIMIT_STATUSES, RETRIED_STATUSES
from nemo_gym.http.deadline import Deadline
from nemo_gym.http.plain_client import target_of
from nemo_gym.http.response import ClientResponse, Cookies, cookie_header
from nemo_gym.http.session import get_global_aiohttp_client, shared_pool

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
_FRAMING = [istr(name) for name in ("Host", "Content-Length", "Transfer-Encoding", "Connection")]
"""Headers that the lean client writes itself; who sets one wants aiohttp's way."""
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)

_LARGE = 2**20
"""Bytes from which aiohttp wants a body as a file, to write it piece by piece."""


async def request(
    method: str,
    url: str,
    *,
    json: Any = None,
    data: Any = None,
    headers: Mapping[str, str] | None = None,
    cookies: Cookies | None = None,
    params: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    retry: RetryPolicy = CONNECT_ONLY,
    read: Callable[[ClientResponse], Awaitable[ClientResponse]] | None = None,
    **options: Any,
) -> ClientResponse:
    """One HTTP call, read to its end. Error statuses are answers here, not exceptions.

    `read` makes the answer of what came, as part of the try: what it raises counts as the connection's.
    """
    sent_headers = CIMultiDict(headers or ())
    if json is not None:
        data = encode_json(json)
        sent_headers.setdefault("Content-Type", "application/json")
    if cookies:
        sent_headers["Cookie"] = cookie_header(cookies)
    activity = current_activity.get() if retry.statuses else None
    slots = activity.limits.of(url) if activity is not None and activity.limits is not None else None
    is_plain = not (params or options or timeout_s is not None or method.upper() == "HEAD")
    target = target_of(url) if is_plain and not any(name in sent_headers for name in _FRAMING) else None
    pool = shared_pool() if target is not None and (data is None or isinstance(data, bytes)) else None
    if pool is not None and target is not None:

        async def send_plainly() -> ClientResponse:
            status, answered, body = await pool.request(method, target, sent_headers.items(), data or b"")
            answer = ClientResponse(status, answered, body, method=method, url=url)
            return answer if read is None else await read(answer)

        return await with_retries(send_plainly, retry, activity=activity, slots=slots)
    # A redirect is an answer like any other, as it is in one process.
    sending: dict[str, Any] = {"allow_redirects": False, **options}
    if timeout_s is not None:
        sending["timeout"] = aiohttp.ClientTimeout(total=timeout_s, sock_connect=30)
    session = get_global_aiohttp_client()

    async def send() -> ClientResponse:
        sent_data = BytesIO(data) if isinstance(data, bytes) and len(data) >= _LARGE else data
        async with session.request(
            method, url, data=sent_data, headers=sent_headers, params=params, **sending
        ) as response:
            body = await response.read()
            answered = tuple(response.headers.items())
            answer = ClientResponse(response.status, answered, body, method=method, url=url)
            return answer if read is None else await read(answer)

    return await with_retries(send, retry, activity=activity, slots=slots)


async def with_retries(
    send: Callable[[], Awaitable[ClientResponse]],
    policy: RetryPolicy,
    *,
    activity: Activity | None = None,
    slots: EndpointLimit | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> ClientResponse:
    """Call until it works, the tries are used up or the time is over; the last outcome stands."""
    deadline = clock() + policy.total_s
    call_timeout_s = (activity.call_timeout_s if activity is not None else None) or policy.total_s
    tries, failures = 0, 0
    left_s = policy.total_s  # to the digit: deadlines of one length share a timer
    while True:
        error: Exception | None = None
        response: ClientResponse | None = None
        # Between our servers one call may be a whole rollout; its deadline is the caller's.
        longest_s = min(call_timeout_s, left_s) if policy.statuses else None
        try:
            response = await _one_try(send, longest_s, slots)
        except _NEVER_SENT as failure:
            error = failure
        except (*_BROKEN, TimeoutError) as failure:
            if not policy.statuses:
                raise
            error = failure
        if response is not None and response.status not in policy.statuses:
            return response
        failures += 1
        tries += response is None or response.status != 429
        if activity is not None:
            activity.tries = failures + 1
            activity.trouble = str(response.status) if response is not None else type(error).__name__
        delay = policy.delay_s(failures, retry_after_s(response))
        if tries >= policy.attempts or clock() + delay > deadline:
            if response is None:
                assert error is not None
                raise error
            return response
        await sleep(delay)
        left_s = deadline - clock()


async def _one_try(
    send: Callable[[], Awaitable[ClientResponse]], longest_s: float | None, slots: EndpointLimit | None
) -> ClientResponse:
    if slots is None:
        with Deadline(longest_s):
            return await send()
    began = await slots.acquire()  # the wait for its turn is not the endpoint's fault
    response = None
    try:
        with Deadline(longest_s):
            response = await send()
            return response
    finally:
        overloaded = response is not None and response.status in OVERLOAD_STATUSES
        slots.release(began, overloaded=overloaded, answered=response is not None and response.ok)


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


def fetch_text(url: str, *, timeout_s: float = 5.0) -> str:
    """A blocking GET of a head server's page, for code that has no event loop yet."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            text: str = answer.read().decode()
            return text
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        reason = getattr(error, "reason", error)
        raise HeadServerUnreachableError(
            f"no head server answers at {url}: {reason}; start one with "
            "ng_run '+config_paths=[...]', or name its address with +head_server.host=… +head_server.port=…"
        ) from error
