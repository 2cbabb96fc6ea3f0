"""Every kind of failure is handled by every consumer, in both packages.

A kind that is added to `nemo_gym.failures` has to be added to `EXPECTED` too.
"""

import asyncio
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.activity import Activity
from nemo_gym.errors import ConfigError
from nemo_gym.failures import FailureKind, rule_of
from nemo_gym.http import (
    FAILURE_KIND_HEADER,
    FAILURE_SERVER_HEADER,
    FAILURE_STATUS_HEADER,
    ClientResponse,
    RetryPolicy,
    ServerCallError,
    ServerUnreachableError,
    raise_for_status,
)
from nemo_gym.records import Key, packed
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy
from nemo_gym.rollout_collection.outcome import Failure, Outcome, PlannedRollout
from nemo_gym.rollout_collection.recording.ledger import FailureBudget, Ledger
from nemo_gym.rollout_collection.recording.recovery import PastFailures, read_failures, recover_failures
from nemo_gym.servers.hosted import HostedServer
from nemo_rl.experience.failures import (
    TERMINAL,
    GymTransportError,
    RolloutConfigurationError,
    RolloutDataFailure,
    classify_rollout_failure,
    gym_failure,
)
from tests.gym.servers.serving import local_client, new_app
from tests.support.scripted_agent import Playground, records_of, row


@dataclass(frozen=True)
class Expected:
    attempts: int
    """In a run with `max_attempts` 3 and two data attempts."""
    data_attempts: int
    counts_as_failure: bool
    """Towards `max_failure_rate`, and as an earlier attempt on resume."""
    training: type[Exception]


OUTAGE = Expected(3, 0, True, GymTransportError)
EXPECTED = {
    "infrastructure": OUTAGE,
    "timeout": OUTAGE,
    "judge_failed": OUTAGE,
    "configuration": Expected(0, 0, True, RolloutConfigurationError),
    "data": Expected(2, 2, True, RolloutDataFailure),
    "cancelled": Expected(1, 0, False, GymTransportError),
}
KEY, REF = Key(0, 0), {"name": "agent"}
each_kind = pytest.mark.parametrize("kind", FailureKind)
charged_kinds = [kind for kind in FailureKind if not rule_of(kind).blames_endpoint]
of_a_rollout = pytest.mark.parametrize("kind", charged_kinds)
blaming_endpoints = pytest.mark.parametrize("kind", sorted({*FailureKind} - {*charged_kinds}))
"""Such failures are charged to no rollout; see also `tests/e2e/test_refusing_endpoints.py`."""


def test_every_kind_is_expected() -> None:
    assert set(EXPECTED) == set(FailureKind)


def failure(kind: FailureKind) -> Failure:
    return Failure(KEY, REF, kind, "Error", "scripted", attempts=EXPECTED[kind].attempts)


def dispatched(kind: FailureKind) -> Failure:
    """The outcome of a rollout whose every attempt fails with this kind."""
    outcomes: list[Outcome] = []

    async def fail(rollout: PlannedRollout, activity: Activity) -> Outcome:
        return failure(kind)

    async def run() -> None:
        policy = RolloutPolicy(60.0, RetryPolicy(max_tries=3, base_delay_s=0.0))
        dispatcher = Dispatcher(fail, lambda rollout, _: Activity(str(rollout.key)), policy, outcomes.append)
        dispatcher.submit(PlannedRollout(KEY, "agent", REF, b"{}", data_attempts_left=2))
        while dispatcher.in_flight:
            dispatcher.changed.clear()
            await dispatcher.changed.wait()

    asyncio.run(run())
    [outcome] = outcomes
    assert isinstance(outcome, Failure)
    return outcome


@of_a_rollout
def test_collector_retries_by_the_rule_of_the_kind(kind: FailureKind) -> None:
    outcome, expected = dispatched(kind), EXPECTED[kind]
    assert (outcome.kind, outcome.attempts) == (kind, expected.attempts)
    assert outcome.data_attempts == expected.data_attempts


@blaming_endpoints
def test_collector_charges_no_rollout_for_an_endpoint(kind: FailureKind) -> None:
    outcomes: list[Outcome] = []
    attempts = asyncio.Semaphore(0)

    async def fail(rollout: PlannedRollout, activity: Activity) -> Outcome:
        attempts.release()
        return Failure(KEY, REF, kind, "Error", "scripted")

    async def run() -> None:
        policy = RolloutPolicy(60.0, RetryPolicy(max_tries=1, base_delay_s=0.0))
        dispatcher = Dispatcher(fail, lambda rollout, _: Activity(str(rollout.key)), policy, outcomes.append)
        dispatcher.submit(PlannedRollout(KEY, "agent", REF, b"{}", data_attempts_left=1))
        [entry] = dispatcher.in_flight
        async with asyncio.timeout(30):
            for _ in range(4):  # the fourth begins after three have ended
                await attempts.acquire()
        assert entry.refusals == 3
        assert (entry.attempts, entry.failures, entry.data_attempts) == (1, 0, 0) and not outcomes
        state = dispatcher.state(None)
        assert (state.refused, state.refusal, state.waiting_calls()) == (1, "scripted", {"refused": 1})
        dispatcher.abandon_all()

    asyncio.run(run())
    assert [one.kind for one in outcomes if isinstance(one, Failure)] == [FailureKind.CANCELLED]


@each_kind
def test_failure_of_a_worker_process_keeps_its_kind(kind: FailureKind) -> None:
    assert pickle.loads(pickle.dumps(failure(kind))).kind is kind


@each_kind
def test_ledger_shows_and_counts_the_kind(kind: FailureKind) -> None:
    ledger = Ledger(planned=1)
    ledger.take(failure(kind))
    if EXPECTED[kind].counts_as_failure:
        assert f"1 failed (1 {kind}) + 0 not run;" in str(ledger)
        assert ledger.causes.lines() == [f"1 x {kind}: Error: scripted"]
        assert ledger.as_data()["failed"] == {kind.value: 1}
    else:
        assert f"0 failed + 1 not run (1 {kind});" in str(ledger)
        assert ledger.causes.lines() == [] and ledger.as_data()["failed"] == {}
    assert FailureBudget(0.5, to_run=1).is_exceeded(ledger, in_flight=0) is EXPECTED[kind].counts_as_failure


def past(kind: FailureKind, tmp_path: Path) -> PastFailures:
    path = tmp_path / "failures.jsonl"
    path.write_bytes(dispatched(kind).line() + b"\n")
    failures, recovery = recover_failures(path)
    assert not recovery.set_aside and read_failures(path) == failures
    return failures


@of_a_rollout
def test_resume_counts_by_the_rule_of_the_kind(kind: FailureKind, tmp_path: Path) -> None:
    failures, expected, key = past(kind, tmp_path), EXPECTED[kind], packed(KEY)
    assert failures.data_attempts.get(key, 0) == expected.data_attempts
    assert failures.attempts.get(key, 0) == (expected.attempts if expected.counts_as_failure else 0)
    assert failures.spent(max_attempts=2) == ({key: kind} if expected.data_attempts else {})


def error_in(response: ClientResponse) -> ServerCallError:
    with pytest.raises(ServerCallError) as raised:
        asyncio.run(raise_for_status(response))
    return raised.value


@each_kind
def test_header_carries_the_kind_through_every_server(kind: FailureKind) -> None:
    async def unreachable(body: dict[str, Any]) -> None:
        raise ServerUnreachableError("policy_model", "gone", kind)

    async def pass_on(body: dict[str, Any]) -> None:
        raise first

    app = new_app()
    app.post("/unreachable")(unreachable)
    app.post("/pass_on")(pass_on)
    client = local_client(it=HostedServer("it", app))
    first = error_in(asyncio.run(client.post("it", "/unreachable", json={})))
    second = error_in(asyncio.run(client.post("it", "/pass_on", json={})))
    for error in (first, second, pickle.loads(pickle.dumps(second))):
        assert (error.kind, error.server, error.origin_status) == (kind, "policy_model", 503)
    headers = (
        (FAILURE_KIND_HEADER, kind.value),
        (FAILURE_SERVER_HEADER, "x"),
        (FAILURE_STATUS_HEADER, "418"),
    )
    assert error_in(ClientResponse(500, headers, b"")).kind is kind


@pytest.mark.parametrize(("status", "kind"), [(503, "infrastructure"), (400, "data")])
def test_unknown_kind_in_a_header_falls_back_to_the_status(status: int, kind: str) -> None:
    headers = ((FAILURE_KIND_HEADER, "infrastucture"), (FAILURE_STATUS_HEADER, str(status)))
    assert error_in(ClientResponse(500, headers, b"")).kind == kind


@each_kind
def test_nemo_rl_raises_by_the_rule_of_the_kind(kind: FailureKind) -> None:
    error = gym_failure(kind, "text")
    assert type(error) is EXPECTED[kind].training
    assert isinstance(error, TERMINAL) is (kind is FailureKind.CONFIGURATION)
    assert classify_rollout_failure(error).name == ("INFRA" if type(error) is GymTransportError else "DATA")


@of_a_rollout
def test_agent_that_declares_a_kind_gets_its_rule(
    kind: FailureKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", raising=False)
    monkeypatch.chdir(tmp_path)
    playground, expected = Playground(tmp_path), EXPECTED[kind]
    playground.write_input(row("a"))
    playground.set_response("0:0", _ng_failure_class=kind.value)
    assert not playground.collect(max_attempts=3)
    assert playground.played() == ["0:0"] * expected.attempts
    [record] = records_of(playground.failures)
    assert (record["_ng_failure_class"], record["attempts"]) == (kind.value, expected.attempts)
    playground.reset_responses()
    assert len(playground.collect(resume_from_cache=True)) == 1


@blaming_endpoints
def test_agent_that_blames_an_endpoint_ends_the_run(
    kind: FailureKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    playground = Playground(tmp_path)
    playground.write_input(row("a"))
    playground.set_response("0:0", _ng_failure_class=kind.value)
    with pytest.raises(ConfigError, match=rf"scripted declared this rollout failed \({kind}\)"):
        playground.collect()
    assert not playground.failures.exists() or not records_of(playground.failures)
    playground.reset_responses()
    assert len(playground.collect(resume_from_cache=True)) == 1


@each_kind
def test_discarded_rollout_is_not_retried_in_the_same_run(
    kind: FailureKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    playground = Playground(tmp_path)
    playground.write_input(row("a"))
    playground.set_response("0:0", _ng_failure_class=kind.value, _ng_no_persist=True)
    assert not playground.collect(max_attempts=3)
    assert playground.played() == ["0:0"]
