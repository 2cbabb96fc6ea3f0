"""A wrong key, address or model ends the run at once with one message, and no rollout is charged."""

import pytest
from aiohttp import web

from scripts.scripted_endpoint import Output
from tests.support.collecting import CollectionRuns, failing, no_override, slow
from tests.support.commands import NgRun

PROCESSES: dict[str, object] = {"executor": "processes", "num_workers": 2}


def refusal(status: int, message: str, code: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code}}, status=status)


async def wrong_key(number: int, times: int) -> Output | None:
    return refusal(401, "Incorrect API key provided: x\nSee the docs.", "invalid_api_key")


async def unknown_model(number: int, times: int) -> Output | None:
    return refusal(404, "The model `no-such` does not exist.", "model_not_found")


def check_refused(runs: CollectionRuns, settings: dict[str, object], *parts: str) -> None:
    collector = runs.start(**settings)
    assert collector.wait(60) == 2, collector.output
    lines = [line for line in collector.output.splitlines() if "refuses every call" in line]
    assert len(lines) == 1, collector.output
    for part in (*parts, "+resume_from_cache=true"):
        assert part in lines[0], lines[0]
    assert collector.output.count(parts[0]) == 1, collector.output
    assert "WARNING" not in collector.output
    assert "Traceback" not in collector.output
    assert not runs.failures and not runs.recorded()
    assert runs.check_ledger()["not_run"] == 12


@pytest.mark.parametrize("settings", [{}, PROCESSES], ids=["embedded", "processes"])
def test_wrong_key_ends_the_run_at_once(runs: CollectionRuns, settings: dict[str, object]) -> None:
    runs.adder.override = wrong_key
    url = f"{runs.endpoint.base_url}/responses"
    check_refused(
        runs, settings, f"{url} responded with 401: Incorrect API key provided: x.", "policy_api_key"
    )
    runs.adder.override = no_override
    runs.finish()


def test_wrong_key_of_served_servers_ends_the_run_at_once(runs: CollectionRuns) -> None:
    runs.adder.override = wrong_key
    with NgRun(list(runs.config_paths), runs.endpoint.settings, cwd=runs.folder) as served:
        settings: dict[str, object] = {"hosting": "served", "head_server.port": served.head.port}
        check_refused(runs, settings, "responded with 401", "policy_api_key")


def test_unknown_model_ends_the_run_at_once(runs: CollectionRuns) -> None:
    runs.adder.override = unknown_model
    check_refused(runs, {}, "The model `no-such` does not exist.", "policy_model_name")


def test_address_without_v1_ends_the_run_at_once(runs: CollectionRuns) -> None:
    url = runs.endpoint.base_url.removesuffix("/v1")
    check_refused(runs, {"policy_base_url": url}, "responded with 404", "the base URL usually ends in /v1")


def test_endpoint_that_says_why_under_another_name_is_quoted(runs: CollectionRuns) -> None:
    async def locked(number: int, times: int) -> Output | None:
        return web.json_response({"detail": "Not authenticated"}, status=401)

    runs.adder.override = locked
    check_refused(runs, {}, "responded with 401: Not authenticated. ")


@pytest.mark.parametrize("settings", [{}, PROCESSES], ids=["embedded", "processes"])
def test_corrected_address_or_model_needs_no_other_setting_to_resume(
    runs: CollectionRuns, settings: dict[str, object]
) -> None:
    wrong = {"policy_model_name": "no-such", "policy_base_url": "http://no-such-host.invalid/v1"}
    assert runs.start(**settings, **wrong).wait(60) == 2
    runs.finish(**settings)
    assert not list(runs.output.parent.glob("rollouts.jsonl.*")), "nothing was recorded"


def test_host_that_does_not_resolve_ends_the_run_at_once(runs: CollectionRuns) -> None:
    url = "http://no-such-host.invalid/v1"
    check_refused(runs, {"policy_base_url": url}, "http://no-such-host.invalid/v1", "policy_base_url")


@pytest.mark.parametrize("status", [403, 404])
def test_row_that_the_endpoint_refuses_while_others_succeed_is_a_data_failure(
    runs: CollectionRuns, status: int
) -> None:
    async def refuse_one(number: int, times: int) -> Output | None:
        await slow(number, times)
        return failing(status) if number == 30 else None

    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 60)
    runs.adder.override = refuse_one
    collector = runs.start(num_samples_in_parallel=4)
    assert collector.wait(60) == 1, collector.output
    assert runs.check_ledger()["succeeded"] == 59
    failure = runs.failure_of(30)
    assert failure["_ng_failure_class"] == "data" and failure["http_status"] == status


def test_last_row_that_the_endpoint_refuses_does_not_hold_up_the_run(runs: CollectionRuns) -> None:
    async def refuse_last(number: int, times: int) -> Output | None:
        return failing(403) if number == 11 else None

    runs.adder.override = refuse_last
    collector = runs.start(num_samples_in_parallel=1, max_attempts=2)
    assert collector.wait(60) == 1, collector.output
    assert runs.failure_of(11)["_ng_failure_class"] == "data"
    assert runs.check_ledger()["succeeded"] == 11


def test_first_rows_that_the_endpoint_refuses_do_not_end_the_run(runs: CollectionRuns) -> None:
    async def refuse_two(number: int, times: int) -> Output | None:
        await slow(number, times)
        return failing(403) if number < 2 else None

    runs.adder.override = refuse_two
    collector = runs.start(num_samples_in_parallel=4)
    assert collector.wait(60) == 1, collector.output
    assert [runs.failure_of(number)["_ng_failure_class"] for number in (0, 1)] == ["data"] * 2
    assert runs.check_ledger()["succeeded"] == 10


def test_key_that_expires_in_the_middle_is_an_outage(runs: CollectionRuns) -> None:
    async def expired(number: int, times: int) -> Output | None:
        return await wrong_key(number, times) if number >= 4 else None

    runs.adder.override = expired
    collector = runs.start(num_samples_in_parallel=4, max_attempts=2, rollout_timeout_s=3)
    collector.wait_until(lambda: "policy_model: status 401 at " in collector.output)
    runs.adder.override = no_override
    assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert not runs.failures
