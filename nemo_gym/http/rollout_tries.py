"""The tries of a call within a rollout of a collection.

A call whose endpoint is unavailable waits for it without limit; the driver of the run decides when that is
too long. Any other failure is one of those that the rollout may have: the only number that limits retries.
"""

from collections.abc import Mapping
from types import MappingProxyType

from nemo_gym.activity import Activity
from nemo_gym.endpoint_health import EndpointHealth, Wait
from nemo_gym.failures import (
    Boundary,
    Charge,
    FailureKind,
    charge_of_error,
    charge_of_status,
    connection_cause,
    endpoint_error,
    has_unknown_host,
    kind_of_response,
    likely_fix,
    was_never_sent,
)
from nemo_gym.http.call import Call
from nemo_gym.http.client_response import (
    FAILURE_COUNT_HEADER,
    FAILURE_KIND_HEADER,
    ClientResponse,
    GivenUpError,
    redirect_target,
)
from nemo_gym.http.retry_policy import RetryPolicy, doubled, retry_after_s
from nemo_gym.http.tries import Clock

LONGEST_BACKOFF_S = 60.0
"""Longest delay after a failure that counts."""
LONGEST_REQUESTED_S = 300.0
"""Longest delay that an endpoint may ask for: one that recovers earlier should be noticed."""
_BODY_LINE = 300


class RolloutTries:
    """Decides about the tries of one call."""

    __slots__ = (
        "_activity",
        "_began",
        "_call",
        "_charged",
        "_clock",
        "_failures",
        "_health",
        "_is_refused",
        "_policy",
        "_previous",
        "_unreachable",
        "_wait",
    )

    def __init__(
        self, call: Call, policy: RetryPolicy, activity: Activity, health: EndpointHealth, clock: Clock
    ) -> None:
        self._call = call
        self._policy = policy
        self._activity = activity
        self._health = health
        self._clock = clock
        self._began = 0.0
        """When the current try began."""
        self._failures = 0
        self._charged = 0
        """Failures that count."""
        self._unreachable = 0
        """Failures in a row to reach the endpoint."""
        self._previous: float | None = None
        """When the previous try failed."""
        self._wait: Wait | None = None
        """Set while the endpoint is unavailable."""
        self._is_refused = False
        """Whether the last try was refused although others were not."""

    def begin(self) -> float | None:
        self._began = self._clock.now()
        self._is_refused = False
        if not self._policy.statuses:
            return self._call.timeout_s  # no other limit: such a call may be a whole rollout
        return self._call.timeout_s or self._policy.try_timeout_s or self._activity.call_timeout_s

    def is_over(self, response: ClientResponse) -> bool:
        if response.status < (300 if self._policy.statuses else 400):
            if self._policy.statuses or self._wait is not None:
                self._health.succeeded(self._call.url, self._clock.now())
            return True
        if response.status in self._policy.statuses:
            return False
        return not (self._policy.statuses and self._is_refused_like_others_are_not(response))

    def _is_refused_like_others_are_not(self, response: ClientResponse) -> bool:
        """Whether the endpoint refuses a call on a route that has worked in this run."""
        status, body = response.status, response.body
        if kind_of_response(status, body, Boundary.ENDPOINT) is not FailureKind.CONFIGURATION:
            return False
        said = f": {_first_line(body)}" if status >= 400 else f", a redirect to {redirect_target(response)}"
        self._note_refusal(f"responded with {status}{said}", status, body)
        self._is_refused = self._health.has_succeeded(self._call.url)
        return self._is_refused

    def delay_s(self, response: ClientResponse | None, error: Exception | None) -> float | None:
        if error is not None and not self._policy.statuses and not was_never_sent(error):
            return None
        if error is not None and has_unknown_host(error):
            self._note_refusal(f"cannot be reached: {error}", None, b"")
            if not self._health.has_succeeded(self._call.url):
                return None
        self._failures += 1
        is_unreachable = error is not None and was_never_sent(error)
        self._unreachable = self._unreachable + 1 if is_unreachable else 0
        charge = self._charge(response, error)
        cause = connection_cause(error) if response is None else str(response.status)
        counts = charge is Charge.ALWAYS or (charge is _OTHERS and self._may_be_cause())
        self._charged += counts
        self._previous = self._clock.now()
        self._set_wait(None if charge is Charge.ALWAYS else cause, may_be_cause=counts)
        self._activity.note_failure(self._failures, cause, self._charged)
        if (
            self._charged >= self._activity.failures_left
            or self._unreachable == self._policy.unreachable_tries
        ):
            return None
        if counts:
            least_s = doubled(self._activity.backoff_s, self._charged, LONGEST_BACKOFF_S)
        else:
            least_s = self._policy.delay_s(self._failures, None)
        requested_s = retry_after_s(response)
        return (
            least_s if requested_s is None else self._policy.delay_s(1, min(requested_s, LONGEST_REQUESTED_S))
        )

    def _charge(self, response: ClientResponse | None, error: Exception | None) -> Charge:
        if error is not None:
            # One of our own servers that cannot be reached is restarting: no call can be the cause.
            return charge_of_error(error) if self._policy.statuses else Charge.NEVER
        assert response is not None
        return _OTHERS if self._is_refused else charge_of_status(response.status)

    def _may_be_cause(self) -> bool:
        """Whether other calls have succeeded since the previous try, so that this call may be the cause.

        If it was so before and all calls that still wait are such calls, it is not an outage either. Nor is a
        repeated refusal if no other call waits: the last row of a run has no others to be compared with.
        """
        if self._previous is None:
            return False
        if self._health.last_success > self._previous:
            return True
        if self._is_refused and len(self._health.waits) <= 1:
            return True
        may_be_cause = self._wait is not None and self._wait.may_be_cause
        return may_be_cause and not self._health.has_certain_waits()

    def _set_wait(self, cause: str | None, *, may_be_cause: bool) -> None:
        if cause is None:
            self._end_wait(0.0)
            return
        if self._wait is None:
            self._wait = Wait(cause)
            self._activity.begin_wait()
        self._wait.cause = cause
        self._wait.may_be_cause |= may_be_cause
        self._health.note_failure(self._wait, self._clock.now())

    def _end_wait(self, last_try_s: float) -> None:
        if self._wait is not None:
            self._health.end_wait(self._wait, self._clock.now())
            self._activity.end_wait(last_try_s)
            self._wait = None

    def _note_refusal(self, what: str, status: int | None, body: bytes) -> None:
        health, url = self._health, self._call.url.partition("?")[0]
        health.refusal = f"{url} {what}"
        health.advice = likely_fix(health.endpoint.name, url, status, body)

    def failed_response(self, response: ClientResponse) -> ClientResponse:
        """With headers that say how many failures it counts as, and, if the call is the cause, its kind."""
        added: Mapping[str, str] = (
            {FAILURE_KIND_HEADER: FailureKind.DATA.value} if self._is_refused else _NOTHING
        )
        headers = (*response.raw_headers, *added.items(), (FAILURE_COUNT_HEADER, str(self._charged)))
        return ClientResponse(
            response.status, headers, response.body, method=response.method, url=response.url
        )

    def failed_with(self, error: Exception) -> Exception:
        is_outage = self._unreachable > 0 and self._charged < self._activity.failures_left
        if self._charged <= 1 and not is_outage:
            return error
        given_up = GivenUpError(error, max(1, self._charged), is_outage)
        given_up.__cause__ = error
        return given_up

    def end(self) -> None:
        self._end_wait(self._clock.now() - self._began)


_OTHERS = Charge.IF_OTHERS_SUCCEED
_NOTHING: Mapping[str, str] = MappingProxyType({})


def _first_line(body: bytes) -> str:
    lines = endpoint_error(body).message.strip().splitlines()
    return lines[0][:_BODY_LINE] if lines else "(empty body)"
