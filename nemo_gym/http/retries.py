"""Retries: sends a call again until it succeeds or there is no further try.

Within the rollouts of a collection, `RolloutTries` decides about the tries; everywhere else `PlainTries`.
"""

from collections.abc import Callable

import aiohttp

from nemo_gym.activity import Activity, EndpointLimit, current_activity
from nemo_gym.endpoint_health import Endpoint
from nemo_gym.failures import OVERLOAD_STATUSES
from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse
from nemo_gym.http.deadline import Deadline
from nemo_gym.http.retry_policy import RetryPolicy
from nemo_gym.http.rollout_tries import RolloutTries
from nemo_gym.http.transport import Transport
from nemo_gym.http.tries import REAL_TIME, Clock, PlainTries, Tries

_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)

Read = Callable[[ClientResponse], ClientResponse]


async def send_with_retries(
    transport: Transport,
    call: Call,
    policy: RetryPolicy,
    *,
    read: Read | None = None,
    endpoint: Endpoint | None = None,
    clock: Clock = REAL_TIME,
) -> ClientResponse:
    """Send a call until it succeeds or there is no further try.

    Returns the last response, or raises the last error.
    `read` converts the response. A connection error that it raises is retried like one of the transport.
    """
    activity = current_activity.get()
    tries = _tries(call, policy, activity, endpoint, clock)
    limit: EndpointLimit | None = None
    if activity is not None and policy.statuses and activity.limits is not None:
        limit = activity.limits.of(call.origin)
    try:
        while True:
            error: Exception | None = None
            response: ClientResponse | None = None
            # Waiting here does not count as time of the call.
            began = await limit.acquire() if limit is not None else 0.0
            try:
                with Deadline(tries.begin()):
                    received = await transport.send(call)
                    response = received if read is None else read(received)
            except _BROKEN as failure:
                error = failure
            finally:
                if limit is not None:
                    _release(limit, began, response)
            if response is not None and tries.is_over(response):
                return response
            delay = tries.delay_s(response, error)
            if delay is None:
                if response is not None:
                    return tries.failed_response(response)
                assert error is not None
                raise tries.failed_with(error)
            await clock.sleep(delay)
    finally:
        tries.end()


def _tries(
    call: Call, policy: RetryPolicy, activity: Activity | None, endpoint: Endpoint | None, clock: Clock
) -> Tries:
    if activity is None or activity.endpoints is None or endpoint is None:
        return PlainTries(call, policy, activity, clock)
    return RolloutTries(call, policy, activity, activity.endpoints.of(endpoint), clock)


def _release(limit: EndpointLimit, began: float, response: ClientResponse | None) -> None:
    overloaded = response is not None and response.status in OVERLOAD_STATUSES
    limit.release(began, overloaded=overloaded, succeeded=response is not None and response.ok)
