"""The tries of one call: the interface, and the decisions for calls outside the rollouts of a collection."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from nemo_gym.activity import Activity
from nemo_gym.failures import Charge, charge_of_status, was_never_sent
from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse
from nemo_gym.http.retry_policy import RetryPolicy, retry_after_s


class Clock(NamedTuple):
    """The clock of the retries."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


REAL_TIME = Clock()


class Tries(Protocol):
    """Decides about the tries of one call."""

    def begin(self) -> float | None:
        """A try starts now; returns its timeout."""

    def is_over(self, response: ClientResponse) -> bool:
        """Whether this response is the result of the call."""

    def delay_s(self, response: ClientResponse | None, error: Exception | None) -> float | None:
        """The delay before the next try after a response or an error; None if there is no further try."""

    def failed_response(self, response: ClientResponse) -> ClientResponse:
        """The response of the last try, for the caller."""

    def failed_with(self, error: Exception) -> Exception:
        """The error of the last try, for the caller."""

    def end(self) -> None:
        """The call is over, whatever its result."""


class PlainTries:
    """For calls outside the rollouts of a collection: a number of tries within a total time."""

    def __init__(self, call: Call, policy: RetryPolicy, activity: Activity | None, clock: Clock) -> None:
        self._call = call
        self._policy = policy
        self._activity = activity if policy.statuses else None
        self._clock = clock
        self._ends = clock.now() + policy.total_s
        self._failures = 0
        self._counted = 0

    def begin(self) -> float | None:
        if not self._policy.statuses:
            return self._call.timeout_s  # no other limit: such a call may be a whole rollout
        # Not what is left at the first try: deadlines with the same timeout share a timer.
        left_s = self._ends - self._clock.now() if self._failures else self._policy.total_s
        longest_s = self._call.timeout_s or self._policy.try_timeout_s
        if longest_s is None and self._activity is not None:
            longest_s = self._activity.call_timeout_s
        return min(longest_s, left_s) if longest_s else left_s

    def is_over(self, response: ClientResponse) -> bool:
        return response.status not in self._policy.statuses

    def delay_s(self, response: ClientResponse | None, error: Exception | None) -> float | None:
        policy = self._policy
        if error is not None and not policy.statuses and not was_never_sent(error):
            return None
        self._failures += 1
        self._counted += response is None or charge_of_status(response.status) is not Charge.NEVER
        if self._activity is not None:
            self._activity.note_failure(self._failures, response.status if response is not None else error)
        delay = policy.delay_s(self._failures, retry_after_s(response))
        is_last = self._counted >= policy.max_tries or self._clock.now() + delay > self._ends
        return None if is_last else delay

    def failed_response(self, response: ClientResponse) -> ClientResponse:
        return response

    def failed_with(self, error: Exception) -> Exception:
        return error

    def end(self) -> None:
        pass
