"""Endpoints that are down or limit the rate of calls: rollouts wait, nothing is charged, the user sees it."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.recording.status_file import read_status
from scripts.scripted_endpoint import Output
from tests.support.collecting import CollectionRuns, Collector, failing, no_override, slow
from tests.support.commands import NgRun, run_command, wait_until

EMBEDDED: dict[str, object] = {}
PROCESSES: dict[str, object] = {"executor": "processes", "num_workers": 2}
OLD_BUDGETS_S = 8.0
"""Longer than three tries of a call and two attempts took, with the settings of these tests."""
QUICK: dict[str, object] = {"max_attempts": 2, "rollout_timeout_s": 3, "call_timeout_s": 2}
"""Settings with which nothing survives that counts as an attempt or as time of a rollout."""
hosting = pytest.mark.parametrize("hosting", ["embedded", "processes", "served"])


@contextmanager
def servers(runs: CollectionRuns, hosting: str) -> Iterator[dict[str, object]]:
    """The settings of a collector whose servers are hosted in one of three ways."""
    if hosting != "served":
        yield {"embedded": EMBEDDED, "processes": PROCESSES}[hosting]
        return
    with NgRun(list(runs.config_paths), runs.endpoint.settings, cwd=runs.folder) as served:
        yield {"hosting": "served", "head_server.port": served.head.port}


def waiting(runs: CollectionRuns) -> dict[str, int]:
    """The calls that wait, by cause, as the status file says."""
    return (read_status(status_path_for(runs.output)) or {}).get("waiting", {})


def check_nothing_charged(runs: CollectionRuns, collector: Collector) -> None:
    runs.check_complete()
    assert not runs.failures and runs.manifest["ledger"]["retried"] == 0, collector.output
    assert b"_ng_attempt_index" not in runs.output.read_bytes()


def check_reported_once(runs: CollectionRuns, collector: Collector, cause: str) -> None:
    url = re.escape(runs.endpoint.base_url)
    assert len(re.findall(rf"policy_model: {cause} at {url}, retrying", collector.output)) == 1, (
        collector.output
    )
    assert len(re.findall(r"policy_model responds again after \d+ s", collector.output)) == 1, (
        collector.output
    )


@hosting
def test_endpoint_that_is_down_at_the_start_is_waited_for(runs: CollectionRuns, hosting: str) -> None:
    runs.endpoint.go_down()
    with servers(runs, hosting) as settings:
        collector, began = runs.start(**QUICK, **settings), time.monotonic()
        collector.wait_until(lambda: waiting(runs) == {"connection refused": 12})
        collector.wait_until(lambda: time.monotonic() > began + OLD_BUDGETS_S)
        collector.wait_until(lambda: "policy_model: connection refused" in collector.output)
        runs.endpoint.come_back()
        assert collector.wait() == 0, collector.output
    check_nothing_charged(runs, collector)
    check_reported_once(runs, collector, "connection refused")


@hosting
@pytest.mark.parametrize("status", [429, 503])
def test_endpoint_that_is_unavailable_in_the_middle_is_waited_for(
    runs: CollectionRuns, hosting: str, status: int
) -> None:
    async def fail_after_four(number: int, times: int) -> Output | None:
        if number < 4:
            return None
        # Else the outage could be reported before the first success.
        await asyncio.to_thread(wait_until, lambda: len(runs.recorded()) == 4)
        return failing(status)

    runs.adder.override = fail_after_four
    with servers(runs, hosting) as settings:
        collector, began = runs.start(**{**QUICK, "max_attempts": 4}, **settings), time.monotonic()
        collector.wait_until(lambda: waiting(runs) == {str(status): 8} and len(runs.recorded()) == 4)
        collector.wait_until(lambda: time.monotonic() > began + OLD_BUDGETS_S)
        collector.wait_until(lambda: f"policy_model: status {status}" in collector.output)
        runs.adder.override = no_override
        assert collector.wait() == 0, collector.output
    check_nothing_charged(runs, collector)
    check_reported_once(runs, collector, f"status {status}")


def test_endpoint_that_goes_down_in_the_middle_loses_no_rollout(runs: CollectionRuns) -> None:
    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 100)
    runs.adder.override = slow
    collector = runs.start(num_samples_in_parallel=4, rollout_timeout_s=3, max_attempts=2)
    collector.wait_until(lambda: len(runs.recorded()) > 10)
    runs.endpoint.go_down()
    collector.wait_until(lambda: "policy_model: connection refused" in collector.output)
    assert waiting(runs) == {"connection refused": 4}
    status = run_command("ng_status", "+output_jsonl_fpath=results/rollouts.jsonl", cwd=runs.folder)
    assert "waiting: connection refused ×4" in status.stdout
    collector.wait_until(lambda: "waiting: connection refused ×4" in collector.output)
    runs.endpoint.come_back()
    assert collector.wait() == 0, collector.output
    runs.check_complete()


@hosting
def test_outage_that_is_too_long_stops_the_run_and_a_resume_completes_it(
    runs: CollectionRuns, hosting: str
) -> None:
    async def fail_after_four(number: int, times: int) -> Output | None:
        return failing(503) if number >= 4 else None

    runs.adder.override = fail_after_four
    with servers(runs, hosting) as settings:
        collector = runs.start(outage_timeout_s=3, **settings)
        assert collector.wait() == 1, collector.output
    assert re.search(
        r"Stopped early: policy_model: status 503 at http://\S+, and no success for 3 s", collector.output
    )
    assert "12 planned = 4 succeeded + 0 failed + 8 not run" in collector.output
    assert "+resume_from_cache=true" in collector.output and "Traceback" not in collector.output
    assert not runs.failures and len(runs.recorded()) == 4
    runs.adder.override = no_override
    runs.finish()


@pytest.mark.parametrize("hosting", ["embedded", "processes"])
def test_row_that_always_gets_a_503_fails_while_others_succeed(runs: CollectionRuns, hosting: str) -> None:
    async def refuse_one(number: int, times: int) -> Output | None:
        await slow(number, times)
        return failing(503) if number == 3 else None

    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 60)
    runs.adder.override = refuse_one
    with servers(runs, hosting) as settings:
        collector = runs.start(num_samples_in_parallel=4, max_attempts=4, **settings)
        assert collector.wait() == 1, collector.output
    failure = runs.failure_of(3)
    assert failure["_ng_failure_class"] == "infrastructure" and failure["http_status"] == 503
    assert runs.check_ledger()["succeeded"] == 59
    assert runs.adder.request_counts[3] <= 6


def test_failed_tries_of_a_call_and_attempts_have_one_budget(runs: CollectionRuns) -> None:
    async def fail_one(number: int, times: int) -> Output | None:
        return failing(500) if number == 3 else None

    runs.adder.override = fail_one
    assert runs.start(max_attempts=4).wait() == 1
    assert runs.adder.request_counts[3] == 4
    assert runs.failure_of(3)["attempts"] == 1
