"""What a rollout is doing right now: for the deadlines of its calls, and to show what it waits for.

A collector gives each rollout in flight an `Activity` and makes it the current one. The client and the
retries note on it what they do. Between server processes it travels as a header.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

ROLLOUT_HEADER = "x-nemo-gym-rollout"
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
    """When the attempt is given up, on this process's monotonic clock."""
    step: str = ""
    since: float = 0.0
    model_calls: int = 0
    retries: int = 0
    """Of the current call to an endpoint."""
    last_error: str = ""
    """What the call before the retry ended with."""

    def begin(self, path: str) -> tuple[str, float]:
        """Start a call to a server. Returns the state before it, for `end`."""
        before = (self.step, self.since)
        if path in _MODEL_PATHS:
            self.model_calls += 1
            self.step = "model call"
        else:
            self.step = path
        self.retries, self.last_error = 0, ""
        self.since = time.monotonic()
        return before

    def end(self, before: tuple[str, float]) -> None:
        self.step, self.since = before
        self.retries, self.last_error = 0, ""

    def note_failure(self, failures: int, error: object) -> None:
        """The call to an endpoint has failed this many times in a row, the last time with this error."""
        self.retries = failures
        self.last_error = type(error).__name__ if isinstance(error, Exception) else str(error)

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
        return (
            f"{self.rollout} {self.attempt} {self.call_timeout_s or 0:g} {ceiling} {self.left_s() or 0:.3f}"
        )

    @property
    def is_over(self) -> bool:
        """Whether its deadline has passed."""
        return self.ends is not None and time.monotonic() >= self.ends

    def left_s(self) -> float | None:
        """Seconds until the attempt is given up; None if it has no deadline."""
        return None if self.ends is None else max(0.001, self.ends - time.monotonic())


def activity_from(header: str, limits: EndpointLimits | None = None) -> Activity | None:
    """The activity that another process sent along; None if the header is not one of ours."""
    try:
        rollout, attempt, timeout, ceiling, left = header.split()
        if limits is not None:
            limits.ceiling = max(limits.ceiling, int(ceiling))
        ends = time.monotonic() + float(left) if float(left) else None
        adaptive = limits if int(ceiling) else None
        return Activity(rollout, float(timeout) or None, adaptive, int(attempt), ends)
    except ValueError:
        return None


current_activity: ContextVar[Activity | None] = ContextVar("current_activity", default=None)
"""The activity of the rollout that the running code belongs to."""
