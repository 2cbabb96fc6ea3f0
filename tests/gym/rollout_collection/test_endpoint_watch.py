"""Outages are reported once; a run whose endpoint is lost or misconfigured ends."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.endpoint_health import EndpointReport, merged
from nemo_gym.rollout_collection.endpoint_watch import Ending, EndpointWatch
from nemo_gym.rollout_collection.execution.executor import ExecutorState

URL = "http://host/v1"


def report(**fields: Any) -> EndpointReport:
    return EndpointReport("policy_model", URL, **fields)


@dataclass
class Watched:
    """A watch and its notes."""

    notes: list[str] = field(default_factory=list)
    now: float = 1000.0
    head: str | None = None

    def __post_init__(self) -> None:
        self.watch = EndpointWatch(60.0, self.notes.append, self._is_head_gone, lambda: self.now)

    async def _is_head_gone(self) -> str | None:
        return self.head

    def look(self, *reports: EndpointReport, succeeded: int = 0, **state: Any) -> Ending | None:
        self.now += 1.0
        found = ExecutorState(endpoints=merged(reports), **{"in_flight": 16, **state})
        return asyncio.run(self.watch.look(found, succeeded))


def test_outage_is_reported_once_and_so_is_its_end() -> None:
    watched = Watched()
    for down_s in (0.5, 1.5, 2.5, 3.5, 30.0):
        assert watched.look(report(failing_s=down_s, waiting={"503": 4})) is None
    assert len(watched.notes) == 1
    assert watched.notes[0].startswith(f"policy_model: status 503 at {URL}, retrying")
    watched.look(report(successes=1, quiet_s=0.1))
    assert len(watched.notes) == 2 and "policy_model responds again after " in watched.notes[1]


def test_endpoint_that_responds_to_one_process_is_not_down() -> None:
    watched = Watched()
    busy = report(successes=9, quiet_s=0.2)
    assert watched.look(report(failing_s=100.0, waiting={"429": 20}), busy) is None
    assert not watched.notes


def test_outage_that_has_ended_in_one_process_is_not_reported_again_by_another() -> None:
    watched = Watched()
    assert watched.look(report(failing_s=9.0, waiting={"429": 8})) is None
    for later_s in range(20):  # the calls of the other process wait for their next try
        waits = report(failing_s=9.0 + later_s, failed_s=1.5 + later_s, waiting={"429": 4})
        watched.look(report(successes=1, quiet_s=0.5 + later_s), waits)
    assert len(watched.notes) == 2 and "responds again" in watched.notes[1]
    watched.look(report(successes=1, quiet_s=30.0), report(failing_s=30.0, failed_s=3.0, waiting={"429": 4}))
    assert len(watched.notes) == 3


def test_outage_that_is_too_long_ends_the_run_without_an_error() -> None:
    watched = Watched()
    assert watched.look(report(failing_s=59.0, waiting={"connection refused": 4})) is None
    ending = watched.look(report(failing_s=60.5, waiting={"connection refused": 4}))
    assert ending is not None and ending.error is None and "no success for 60 s" in ending.reason


def test_three_refused_rollouts_end_the_run_if_nothing_has_succeeded() -> None:
    watched, refusal = Watched(), report(refusal="responded with 401: no", advice="check the key")
    assert [watched.look(refusal, refused=refused) for refused in (2, 2, 3)] == [None] * 3
    ending = watched.look(refusal, refused=3)
    assert ending is not None and ending.error is not None and ending.error.exit_code == 2
    assert (
        "policy_model refuses every call: responded with 401: no. To fix it, check the key." in ending.reason
    )


def test_refusals_after_a_success_in_any_process_are_an_outage() -> None:
    watched, refusal = Watched(), report(refusal="responded with 401: no")
    assert watched.look(report(successes=1, quiet_s=1.0), refusal, refused=16) is None
    for _ in range(3):  # the worker with the success has died
        assert watched.look(refusal, refused=16) is None
    ending = watched.look(report(successes=1, quiet_s=61.0, refusal="no"), refused=16)
    assert ending is not None and ending.error is None


def test_all_rollouts_in_flight_are_enough_if_they_are_fewer_than_three() -> None:
    watched, refusal = Watched(), report(refusal="responded with 404: no")
    assert watched.look(refusal, refused=1, in_flight=1) is None
    assert watched.look(refusal, refused=1, in_flight=1) is not None


def test_servers_that_are_gone_with_their_head_server_end_the_run() -> None:
    agent = EndpointReport("agent", "http://host:1", True, failing_s=1.0, waiting={"connection refused": 4})
    watched = Watched()
    assert watched.look(agent) is None and watched.look(agent) is None, "it restarts"
    watched.head = "http://host:2"
    assert watched.look(agent) is None
    ending = watched.look(agent)
    assert ending is not None and "ng_run has ended" in ending.reason and ending.error is None
