"""Watches the endpoints of a run: reports each outage once, and ends the run when waiting is useless.

It sees all processes of the run. Rollouts that it ends have not failed; they remain to be played.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from nemo_gym.endpoint_health import FEWEST_REFUSED, Endpoint, EndpointReport
from nemo_gym.errors import ConfigError, NeMoGymError
from nemo_gym.failures import FailureKind
from nemo_gym.rollout_collection.execution.executor import ExecutorState
from nemo_gym.rollout_collection.recording.causes import cause_of
from nemo_gym.terminal import one_line

_SHOWN_AFTER_S = 2.0
"""An outage is reported after this time. Less than the 5 s in which a user should see it, by two reports."""
_FORGOTTEN_AFTER_S = 60.0
"""An outage is over if no call has waited for this time."""
_LOOKS = 2
"""So often in a row: the reports of different processes are not from the same moment."""


@dataclass(frozen=True)
class Ending:
    """Why the run has to end."""

    reason: str
    error: NeMoGymError | None = None
    """Raised if the user has to change something first."""


@dataclass
class _Outage:
    since: float
    waited_at: float
    successes: int
    """Those before it. Counts are compared, because the times in reports of several processes differ."""


@dataclass
class EndpointWatch:
    """Called with the state of the executor every second."""

    outage_timeout_s: float
    note: Callable[[str], None]
    is_head_gone: Callable[[], Awaitable[str | None]] | None = None
    """With served servers: asks their head server; returns its address if it cannot be reached."""
    clock: Callable[[], float] = time.monotonic
    _outages: dict[Endpoint, _Outage] = field(default_factory=dict)
    _responded: set[Endpoint] = field(default_factory=set)
    """The endpoints with a success in this run; kept here because a worker may die with its count."""
    _looks: Counter[str] = field(default_factory=Counter)

    async def look(self, state: ExecutorState, succeeded: int) -> Ending | None:
        """Report what has changed. Returns why the run has to end, if it does.

        `succeeded` is the number of rollouts that have succeeded in this run.
        """
        reports = state.with_refused()
        self._responded |= {_key(report) for report in reports if report.successes}
        for report in reports:
            if report.url or succeeded:  # else the run is about to end
                self._report_outage(report)
        if not state.refused:
            self._outages.pop(_UNKNOWN, None)
        return self._timed_out(reports) or self._refused(state, succeeded) or await self._abandoned(reports)

    def _report_outage(self, report: EndpointReport) -> None:
        now, key = self.clock(), _key(report)
        outage, down_s = self._outages.get(key), report.down_s
        if outage is None:
            if down_s is not None and down_s >= _SHOWN_AFTER_S:
                self._outages[key] = _Outage(now - down_s, now, report.successes)
                self.note(
                    f"{_trouble(report)}, retrying; rollouts wait, "
                    f"and the run stops after {self.outage_timeout_s:g} s without success (outage_timeout_s)"
                )
            return
        if report.successes > outage.successes:
            del self._outages[key]
            self.note(f"{one_line(report.name)} responds again after {now - outage.since:.0f} s")
            return
        outage.successes = report.successes  # fewer if a worker has died
        if report.waiting:
            outage.waited_at = now
        elif now - outage.waited_at > _FORGOTTEN_AFTER_S:
            del self._outages[key]

    def _timed_out(self, reports: Iterable[EndpointReport]) -> Ending | None:
        for report in reports:
            if report.down_s is not None and report.down_s >= self.outage_timeout_s:
                return Ending(
                    f"{_trouble(report)}, and no success for {self.outage_timeout_s:g} s (outage_timeout_s)"
                )
        return None

    def _refused(self, state: ExecutorState, succeeded: int) -> Ending | None:
        """If an endpoint that has never responded refuses every call, its configuration is wrong."""
        if not state.refused or state.refused < min(FEWEST_REFUSED, state.in_flight):
            self._looks["refused"] = 0
            return None
        refusing = [one for one in state.endpoints if one.refusal and not one.is_server]
        never = [one for one in refusing if _key(one) not in self._responded]
        is_refused = bool(never) or not (refusing or succeeded)
        self._looks["refused"] = self._looks["refused"] + 1 if is_refused else 0
        if self._looks["refused"] < _LOOKS:
            return None
        what = (
            f"{never[0].name} refuses every call: {never[0].refusal}" if never else _innermost(state.refusal)
        )
        advice = never[0].advice if never else "check the configuration of the model server"
        text = (
            f"{one_line(what).rstrip('.')}. To fix it, {advice}. No rollout has used up an attempt; "
            "the same command with +resume_from_cache=true runs the missing rollouts"
        )
        return Ending(text, ConfigError(text))

    async def _abandoned(self, reports: Iterable[EndpointReport]) -> Ending | None:
        """If our own servers and their head server cannot be reached, `ng_run` has ended."""
        servers = [one for one in reports if one.is_server and one.waiting]
        if not servers or self.is_head_gone is None:
            self._looks["head"] = 0
            return None
        head = await self.is_head_gone()
        self._looks["head"] = self._looks["head"] + 1 if head is not None else 0
        if self._looks["head"] < _LOOKS:
            return None
        names = ", ".join(sorted({one_line(one.name) for one in servers}))
        return Ending(f"ng_run has ended: neither {names} nor its head server at {head} can be reached")


def _key(report: EndpointReport) -> Endpoint:
    return Endpoint(report.name, report.url, report.is_server)


_UNKNOWN = Endpoint("rollouts", "")
"""What rollouts wait for if they are refused, but not by an endpoint that the run knows."""


def _trouble(report: EndpointReport) -> str:
    """`policy_model: status 503 at http://host:8000/v1`."""
    if not report.url:
        return one_line(_innermost(report.refusal)).rstrip(".")
    causes = " and ".join(map(_cause, report.waiting))
    return f"{one_line(report.name)}: {causes} at {one_line(report.url)}"


def _innermost(refusal: str) -> str:
    """Without the servers that only passed the failure on."""
    cause = cause_of(FailureKind.CONFIGURATION, "", refusal)
    return f"{cause.place}: {cause.text}" if cause.place else refusal


def _cause(cause: str) -> str:
    return f"status {cause}" if cause.isdecimal() else cause
