"""What `ng_status` and the progress line show of a running collection."""

import asyncio
import re
import signal
import threading

from nemo_gym.path_utils import status_path_for
from scripts.scripted_endpoint import Output
from tests.support.collecting import CALCULATOR, LONGEST_S, MODEL, CollectionRuns, failing, hang
from tests.support.commands import NgRun, free_port, run_command, wait_until

WAITING = re.compile(r"^(\d+:0) +calculator_simple_agent +\d+ s +(.*)$", re.M)
TWO_MODEL_WORKERS = {"policy_model.responses_api_models.openai_model.num_workers": 2}
REFUSED = re.compile(r"\d+ s in model call 1, retry \d+ after 429")


async def too_busy(number: int, times: int) -> Output | None:
    """Always 429 for the first question, no response at all to the second."""
    if number == 1:
        return await hang(number, times)
    return failing(429) if number == 0 else None


def status_of(runs: CollectionRuns, port: int) -> str:
    """The output of `ng_status` for the collection."""
    output = str(runs.output.relative_to(runs.folder))
    status = run_command(
        "ng_status", f"+output_jsonl_fpath={output}", f"+head_server.port={port}", cwd=runs.folder
    )
    return status.stdout


def shown(runs: CollectionRuns, port: int) -> dict[str, str]:
    """What each rollout is waiting for, according to `ng_status`."""
    return dict(WAITING.findall(status_of(runs, port)))


def test_status_shows_what_the_oldest_rollouts_of_an_embedded_run_wait_for(runs: CollectionRuns) -> None:
    runs.adder.override = too_busy
    collector, port = runs.start(), free_port()
    collector.wait_until(lambda: bool(REFUSED.fullmatch(shown(runs, port).get("0:0", ""))))
    found = shown(runs, port)
    assert re.fullmatch(r"\d+ s in model call 1", found["1:0"])
    collector.send(signal.SIGTERM)
    collector.send(signal.SIGTERM)
    assert collector.wait() == 1
    assert not status_path_for(runs.output).exists()


def test_status_finds_collections_below_results(runs: CollectionRuns) -> None:
    runs.adder.override = too_busy
    collector, port = runs.start(), free_port()
    collector.wait_until(lambda: "model call 1" in shown(runs, port).get("1:0", ""))
    status = run_command("ng_status", f"+head_server.port={port}", cwd=runs.folder)
    assert status.returncode == 0 and f"process {collector.pid} on " in status.stdout
    collector.kill()
    after = run_command("ng_status", f"+head_server.port={port}", cwd=runs.folder)
    assert after.returncode == 2 and "No running collection" in after.stderr


def test_status_shows_what_rollouts_of_a_served_run_wait_for(runs: CollectionRuns) -> None:
    runs.adder.override = too_busy
    with NgRun([CALCULATOR, MODEL], runs.endpoint.settings) as fleet:
        port = fleet.head.port
        collector = runs.start(hosting="served", **{"head_server.port": port})
        collector.wait_until(lambda: bool(REFUSED.fullmatch(shown(runs, port).get("0:0", ""))))
        assert re.fullmatch(r"\d+ s in model call 1", shown(runs, port)["1:0"])
        collector.send(signal.SIGTERM)
        collector.send(signal.SIGTERM)
        assert collector.wait() == 1


def test_limits_of_served_processes_are_in_the_progress_and_the_status(runs: CollectionRuns) -> None:
    let_go = threading.Event()

    async def busy(number: int, times: int) -> Output | None:
        await asyncio.to_thread(let_go.wait, LONGEST_S)
        return None

    runs.adder.override = busy
    many = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 40)
    origin = runs.endpoint.base_url.removeprefix("http://").removesuffix("/v1")
    with NgRun([CALCULATOR, MODEL], {**runs.endpoint.settings, **TWO_MODEL_WORKERS}) as fleet:
        port = fleet.head.port
        settings: dict[str, object] = {"head_server.port": port, "adaptive_concurrency": "true"}
        collector = many.start(hosting="served", **settings, num_samples_in_parallel=40)
        # Each of the two processes starts with a limit of 16.
        collector.wait_until(lambda: f"limits: {origin} 32\n" in status_of(many, port))
        let_go.set()
        assert collector.wait() == 0, collector.output
    limit = re.search(rf"limit {origin} (\d+)", collector.output)
    assert limit is not None and int(limit[1]) >= 32
    many.check_complete()


def test_status_includes_the_rollouts_of_all_workers(runs: CollectionRuns) -> None:
    runs.adder.override = too_busy
    collector, port = runs.start(executor="processes", num_workers=2), free_port()
    collector.wait_until(lambda: {"0:0", "1:0"} <= set(shown(runs, port)))
    collector.send(signal.SIGTERM)
    collector.send(signal.SIGTERM)
    assert collector.wait() == 1


def test_cancelled_rollout_is_cancelled_in_the_server_too(runs: CollectionRuns) -> None:
    """A server stops working on a rollout that the collector has cancelled."""
    runs.adder.override = hang
    with NgRun([CALCULATOR, MODEL], runs.endpoint.settings) as fleet:
        settings: dict[str, object] = {"head_server.port": fleet.head.port, "limit": 1, "max_attempts": 1}
        collector = runs.start(hosting="served", rollout_timeout_s=2, **settings)
        assert collector.wait() == 1 and "1 timeout" in collector.output
        assert wait_until(lambda: bool(fleet.lines_of("calculator_simple_agent")))
        lines = "".join(fleet.lines_of("calculator_simple_agent"))
        assert "rollout 0:0: /run did not finish in time" in lines


def test_adaptive_concurrency_finds_the_level_of_an_overloaded_endpoint(runs: CollectionRuns) -> None:
    in_flight = most = arrived = 0

    async def at_most_four(number: int, times: int) -> Output | None:
        nonlocal in_flight, most, arrived
        in_flight += 1
        most = max(most, in_flight)
        arrived += 1
        seen = 0
        try:
            while seen < arrived:  # until all that the collector sends at once have arrived, however slowly
                seen = arrived
                await asyncio.sleep(0.02)
            return failing(429) if in_flight > 4 else None
        finally:
            in_flight -= 1

    runs.adder.override = at_most_four
    many = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 150)
    collector = many.start(adaptive_concurrency="true", num_samples_in_parallel=64)
    assert collector.wait() == 0, collector.output
    limit = re.search(r"limit 127\.0\.0\.1:\d+ (\d+)", collector.output)
    assert limit is not None and 1 <= int(limit[1]) <= 16
    assert most <= 32  # without the limit all 64 would have been sent at once
    many.check_complete()
