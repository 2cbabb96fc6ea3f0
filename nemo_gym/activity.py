"""What a rollout is doing right now: for the deadlines of its calls, and to show what it waits for.

A collector gives each rollout in flight an `Activity` and makes it the current one. The client and the
retries note on it what they do. Between server processes it travels as a header.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from nemo_gym.endpoint_health import RunEndpoints

ROLLOUT_HEADER = "x-nemo-gym-rollout"
WAITED_HEADER = "x-nemo-gym-waited"
_MODEL_PATHS = ("/v1/responses", "/v1/chat/completions")
_STEPS = {
    "/seed_session": "seeding",
    "/verify": "verification",
    "/run": "the agent",
    "retry": "the wait for another attempt",
}


class EndpointLimit:
    """How many calls one endpoint gets at once: more while calls succeed, fewer when it is overloaded.

    Until the first overload the limit doubles after as many successful calls as the limit; later it grows by
    one.
    """

    DECREASE = 0.7
    FIRST = 16.0

    def __init__(self, ceiling: int) -> None:
        self.ceiling = float(ceiling)
        self.limit = min(self.FIRST, self.ceiling)
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_probing = True
        self._decreased_at = float("-inf")

    async def acquire(self) -> float:
        """Wait for a slot, first come, first served; returns the time at which it was free, for `release`."""
        if self.in_flight < int(self.limit):  # then no call waits
            self.in_flight += 1
            return time.monotonic()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # already skipped by `_wake`
                    self._waiting.remove(turn)
            else:  # the slot was given to this call already: pass it on
                self.in_flight -= 1
                self._wake()
            raise
        return time.monotonic()

    def release(self, began: float, *, overloaded: bool, succeeded: bool) -> None:
        """A call is over."""
        self.in_flight -= 1
        if overloaded:
            # Calls that began before the last decrease say nothing new.
            if began >= self._decreased_at:
                self.limit = max(1.0, self.limit * self.DECREASE)
                self._is_probing = False
                self._decreased_at = time.monotonic()
        elif succeeded and 2 * (self.in_flight + 1) >= self.limit:  # a limit that is not used is not raised
            self.limit = min(self.ceiling, self.limit + (1.0 if self._is_probing else 1.0 / self.limit))
        self._wake()

    def _wake(self) -> None:
        """Give free slots to waiting calls. The slot is taken from now on, before the call runs."""
        while self._waiting and self.in_flight < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.in_flight += 1


@dataclass
class EndpointLimits:
    """The limits of all endpoints that a run calls."""

    ceiling: int
    by_origin: dict[str, EndpointLimit] = field(default_factory=dict)

    def of(self, url: str) -> EndpointLimit:
        parts = urlsplit(url)
        origin = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        limit = self.by_origin.get(origin)
        if limit is None:
            limit = self.by_origin[origin] = EndpointLimit(self.ceiling)
        limit.ceiling = float(self.ceiling)  # a later run may allow more
        return limit

    def current(self) -> dict[str, int]:
        """How many calls each endpoint gets at once now."""
        return {origin: int(limit.limit) for origin, limit in self.by_origin.items()}


@dataclass(slots=True, eq=False)
class Activity:
    """One attempt of one rollout."""

    rollout: str
    """`task:rollout`."""
    call_timeout_s: float | None = None
    limits: EndpointLimits | None = None
    """None unless concurrency adapts."""
    attempt: int = 1
    ends: float | None = None
    """When the attempt is given up, on this process's monotonic clock, if it never waits for an endpoint."""
    endpoints: RunEndpoints | None = None
    """The endpoints of the run. None: its calls do not wait for an endpoint that is unavailable."""
    failures_left: int = 1
    """How many failures the rollout may still have, this attempt included."""
    backoff_s: float = 0.5
    """Delay after the first of them; doubles for each later one."""
    step: str = ""
    since: float = 0.0
    model_calls: int = 0
    retries: int = 0
    """Of the current call to an endpoint."""
    last_error: str = ""
    """What the call before the retry ended with."""
    charged: int = 0
    """Failures of the current call to an endpoint that count."""
    waited_elsewhere_s: float = 0.0
    """How long its calls in other processes have waited for endpoints, as far as they have reported it."""
    _waited_s: float = 0.0
    _waits: int = 0
    _waits_since: float = 0.0

    @property
    def key(self) -> str:
        """Names the attempt, in all processes."""
        return f"{self.rollout}#{self.attempt}"

    def begin(self, path: str) -> tuple[str, float]:
        """Start a call to a server. Returns the state before it, for `end`."""
        before = (self.step, self.since)
        if path in _MODEL_PATHS:
            self.model_calls += 1
            self.step = "model call"
        else:
            self.step = path
        self.retries, self.last_error, self.charged = 0, "", 0
        self.since = time.monotonic()
        return before

    def end(self, before: tuple[str, float]) -> None:
        self.step, self.since = before
        self.retries, self.last_error, self.charged = 0, "", 0

    def note_failure(self, failures: int, error: object, charged: int = 0) -> None:
        """The call to an endpoint has failed this many times in a row, the last time with this error."""
        self.retries, self.charged = failures, charged
        self.last_error = type(error).__name__ if isinstance(error, Exception) else str(error)

    def begin_wait(self) -> None:
        """A call begins to wait for an endpoint that is unavailable."""
        if not self._waits:
            self._waits_since = time.monotonic()
        self._waits += 1

    def end_wait(self, last_try_s: float) -> None:
        """It does not wait any more. Its last try, which took this long, was not part of the wait."""
        self._waits -= 1
        if not self._waits:
            self._waited_s += max(0.0, time.monotonic() - self._waits_since - last_try_s)

    def waited_s(self) -> float:
        """How long its calls have waited for endpoints. This time does not count against any timeout."""
        return self.waited_here_s() + self.waited_elsewhere_s

    def waited_here_s(self) -> float:
        """The same for calls from this process."""
        return self._waited_s + (time.monotonic() - self._waits_since if self._waits else 0.0)

    def add_wait(self, waited_s: float) -> None:
        """A call to another process has returned, which waited this long."""
        self._waited_s += waited_s

    def wait_for_retry(self, error: object) -> None:
        """The attempt has failed; the next one starts after a delay."""
        self.step, self.last_error, self.retries = "retry", str(error), 0
        self.since = time.monotonic()

    def waits_for(self) -> str:
        """`312 s in model call 7, retry 2 after 429`."""
        if not self.step:
            return "starting"
        words = [f"{time.monotonic() - self.since:.0f} s in {self._step_name()}"]
        if error := self._error():
            words.append(error)
        if self.attempt > 1:
            words.append(f"attempt {self.attempt} of the rollout")
        return ", ".join(words)

    def _step_name(self) -> str:
        if self.step == "model call":
            return f"model call {self.model_calls}"
        return _STEPS.get(self.step) or f"tool {self.step.removeprefix('/')}"

    def _error(self) -> str:
        """`retry 2 after 429`; empty if there was no error."""
        return f"retry {self.retries} after {self.last_error}" if self.retries else self.last_error

    def as_data(self) -> dict[str, str]:
        """For the activity report of this process; the step is empty if it is another process's."""
        return {
            "rollout": self.rollout,
            "waits_for": self.waits_for() if self.step else "",
            "error": "" if self.step else self._error(),
        }

    def header(self) -> str:
        """The value of the header that goes along with a call to another process."""
        ceiling = self.limits.ceiling if self.limits is not None else 0
        run = self.endpoints.run if self.endpoints is not None else "-"
        return (
            f"{self.rollout} {self.attempt} {self.call_timeout_s or 0:g} {ceiling} {self.left_s() or 0:.3f} "
            f"{run} {self.failures_left} {self.backoff_s:g}"
        )

    @property
    def is_over(self) -> bool:
        """Whether its deadline has passed."""
        return self.ends is not None and time.monotonic() >= self.ends + self.waited_s()

    def left_s(self) -> float | None:
        """Seconds until the attempt is given up; None if it has no deadline."""
        return None if self.ends is None else max(0.001, self.ends + self.waited_s() - time.monotonic())


def waited_s(headers: Iterable[tuple[str, str]]) -> float:
    """How long a call has waited for endpoints in another process, from the headers of its response."""
    for name, value in headers:
        if name == WAITED_HEADER or name.lower() == WAITED_HEADER:
            with suppress(ValueError):
                return float(value)
    return 0.0


def activity_from(
    header: str,
    limits: EndpointLimits | None = None,
    endpoints_of: Callable[[str], RunEndpoints] = RunEndpoints,
) -> Activity | None:
    """The activity that another process sent along; None if the header is not one of ours."""
    try:
        rollout, attempt, timeout, ceiling, left, run, failures_left, backoff = header.split()
        if limits is not None:
            limits.ceiling = max(limits.ceiling, int(ceiling))
        return Activity(
            rollout,
            float(timeout) or None,
            limits if int(ceiling) else None,
            int(attempt),
            time.monotonic() + float(left) if float(left) else None,
            endpoints_of(run) if run != "-" else None,
            int(failures_left),
            float(backoff),
        )
    except ValueError:
        return None


current_activity: ContextVar[Activity | None] = ContextVar("current_activity", default=None)
"""The activity of the rollout that the running code belongs to."""


def in_collection() -> bool:
    """Whether the running code belongs to a rollout of a collection, which watches its endpoints."""
    activity = current_activity.get()
    return activity is not None and activity.endpoints is not None
