"""When calls are sent again: the policy, its two instances, and the delays."""

import random
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from nemo_gym.failures import RATE_LIMIT_STATUSES, RETRIED_STATUSES
from nemo_gym.http.client_response import ClientResponse

MAX_NUM_TRIES = 3
"""How often a call outside the rollouts of a collection is sent at most, if it fails."""

RATE_LIMIT_ERROR_CODES = list(RATE_LIMIT_STATUSES)
RETRY_ERROR_CODES = list(RETRIED_STATUSES)


@dataclass(frozen=True)
class RetryPolicy:
    """When a call is sent again."""

    max_tries: int = MAX_NUM_TRIES
    """How often a call that fails is sent at most; responses with status 429 are not counted. A call within a
    rollout is sent as often as the rollout may have failures."""
    base_delay_s: float = 0.5
    """Delay before the first retry; doubles before each later one, half of it random."""
    max_delay_s: float = 30.0
    """Longest delay, unless a server asks for a longer one."""
    total_s: float = 3600.0
    """No retry starts after this time, and a call to an endpoint ends at it. If a server asks for a longer
    delay than is left, there is no retry. Generous, because a long generation is one call. Not for calls
    within a rollout, which has a timeout of its own."""
    statuses: tuple[int, ...] = ()
    """Statuses of responses after which a call is sent again. Empty between our own servers."""
    try_timeout_s: float | None = None
    """Timeout of one try; None: that of the rollout, or what is left of `total_s`."""
    unreachable_tries: int | None = None
    """How often a call within a rollout is sent to an endpoint that cannot be reached. None: no limit."""

    def delay_s(self, failures: int, retry_after_s: float | None) -> float:
        """The delay after this many failures in a row."""
        if retry_after_s is not None:
            return max(retry_after_s, self.base_delay_s)  # a server may ask for no delay
        return doubled(self.base_delay_s, failures, self.max_delay_s)


def doubled(base_s: float, failures: int, longest_s: float) -> float:
    """A delay that doubles with each failure, up to the longest; half of it is random."""
    doublings = min(failures - 1, 64)  # avoids an overflow; the delay has long reached its maximum
    return min(base_s * 2.0**doublings, longest_s) * (0.5 + random.random() / 2)


CONNECT_ONLY = RetryPolicy(base_delay_s=0.1, max_delay_s=5.0, total_s=10.0)
"""Between our own servers: a call is sent again only if it never reached the server."""

MODEL_ENDPOINT = RetryPolicy(statuses=RETRIED_STATUSES)
"""To a model endpoint: a call is also sent again after a failure or a rate limit."""


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
