"""What one process knows about the endpoints that a run calls: which respond, and which calls wait for one.

Invariant: the successes are those of this run only. The driver merges the reports of all processes.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

FEWEST_REFUSED = 3
"""So many calls have to be refused before the endpoint is to blame: it may refuse a single prompt."""
_REPORT_S = 1.0
"""Time between two reports of a process, so the times of two processes may differ by it."""
_SAME_OUTAGE_S = 60.0
"""A call that waits within this time after another one had to give up waits for the same outage."""


class Endpoint(NamedTuple):
    """What a call goes to."""

    name: str
    """The model server that calls it; for one of our own servers, its name."""
    url: str
    is_server: bool = False
    """Whether it is one of our own servers."""


@dataclass(slots=True, eq=False)
class Wait:
    """A call that waits until its endpoint responds again."""

    cause: str
    """`429`, `connection refused`."""
    may_be_cause: bool = False
    """Whether other calls succeeded while this one failed, so that the call itself may be the cause."""


@dataclass(frozen=True)
class EndpointReport:
    """An endpoint as one or several processes see it. Plain data, for other processes."""

    name: str
    url: str
    is_server: bool = False
    successes: int = 0
    quiet_s: float | None = None
    """Time since the last success; None if there was none."""
    failing_s: float | None = None
    """Time since the first failure after the last success; None unless calls wait."""
    failed_s: float = 0.0
    """Time since the last failure of a call that waits."""
    waiting: dict[str, int] = field(default_factory=dict)
    """The number of calls that wait, by cause."""
    refusal: str = ""
    """The newest refusal of the key, the route, the model or the address."""
    advice: str = ""
    """What to do about the refusal."""

    @property
    def down_s(self) -> float | None:
        """For how long it has failed without any success; None if no call waits."""
        if self.failing_s is None or self.quiet_s is None:
            return self.failing_s
        if self.quiet_s < self.failed_s + _REPORT_S:
            return None  # nothing has failed since the last success, in whichever process that was
        return min(self.failing_s, self.quiet_s)

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


class EndpointHealth:
    """One endpoint. `succeeded` is called for every successful call, so it does nearly nothing."""

    __slots__ = (
        "_failed_at",
        "_failing_since",
        "_good_urls",
        "_waited_until",
        "advice",
        "endpoint",
        "last_success",
        "refusal",
        "successes",
        "waits",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.successes = 0
        self.last_success = float("-inf")
        self.waits: dict[Wait, None] = {}
        self.refusal = ""
        self.advice = ""
        self._good_urls: set[str] = set()
        self._failing_since: float | None = None
        self._failed_at = float("-inf")
        self._waited_until = float("-inf")

    def succeeded(self, url: str, now: float) -> None:
        self.successes += 1
        self.last_success = now
        self._good_urls.add(url)
        self._failing_since = None

    def has_succeeded(self, url: str) -> bool:
        return url in self._good_urls

    def note_failure(self, wait: Wait, now: float) -> None:
        """A try has failed, and its call waits now. After a success, only a new failure means an outage."""
        is_new = not self.waits and now - self._waited_until > _SAME_OUTAGE_S
        self.waits[wait] = None
        self._failed_at = now
        if self._failing_since is None or is_new:
            self._failing_since = now

    def end_wait(self, wait: Wait, now: float) -> None:
        self.waits.pop(wait, None)
        self._waited_until = now

    def has_certain_waits(self) -> bool:
        """Whether a call waits of which it is certain that the endpoint is the cause."""
        return any(not wait.may_be_cause for wait in self.waits)

    def report(self, now: float) -> EndpointReport:
        return EndpointReport(
            *self.endpoint,
            successes=self.successes,
            quiet_s=now - self.last_success if self.successes else None,
            failing_s=now - self._failing_since if self.waits and self._failing_since is not None else None,
            failed_s=now - self._failed_at if self.waits else 0.0,
            waiting=dict(Counter(wait.cause for wait in self.waits)),
            refusal=self.refusal,
            advice=self.advice,
        )


class RunEndpoints:
    """The endpoints that one run calls from this process."""

    def __init__(self, run: str) -> None:
        self.run = run
        """Identifies the run, also in other processes."""
        self._found: dict[Endpoint, EndpointHealth] = {}

    def of(self, endpoint: Endpoint) -> EndpointHealth:
        health = self._found.get(endpoint)
        if health is None:
            health = self._found[endpoint] = EndpointHealth(endpoint)
        return health

    def reports(self) -> list[EndpointReport]:
        now = time.monotonic()
        return [health.report(now) for health in self._found.values()]


def merged(reports: Iterable[EndpointReport]) -> list[EndpointReport]:
    """One report per endpoint, from those of all processes."""
    by_endpoint: dict[Endpoint, EndpointReport] = {}
    for report in reports:
        key = Endpoint(report.name, report.url, report.is_server)
        other = by_endpoint.get(key)
        by_endpoint[key] = report if other is None else _both(other, report)
    return list(by_endpoint.values())


def _both(first: EndpointReport, second: EndpointReport) -> EndpointReport:
    quiet = [one.quiet_s for one in (first, second) if one.quiet_s is not None]
    failing = [one.failing_s for one in (first, second) if one.failing_s is not None]
    failed = [one.failed_s for one in (first, second) if one.failing_s is not None]
    return EndpointReport(
        first.name,
        first.url,
        first.is_server,
        first.successes + second.successes,
        min(quiet, default=None),
        max(failing, default=None),
        min(failed, default=0.0),
        dict(Counter(first.waiting) + Counter(second.waiting)),
        second.refusal or first.refusal,
        second.advice or first.advice,
    )
