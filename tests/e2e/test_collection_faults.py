"""Disks, locks, signals, endpoints and processes that fail: a clear message, and a resume that completes."""

import asyncio
import os
import random
import signal
import subprocess
from contextlib import suppress
from functools import partial

import pytest

from nemo_gym.path_utils import status_path_for
from scripts.scripted_endpoint import Output
from tests.support.collecting import CollectionRuns, Collector, failing, hang, no_override
from tests.support.commands import BIN, NgRun, children_of, is_running
from tests.support.faults import limit_file_size

PROCESSES = {"executor": "processes", "num_workers": 2}


def test_full_disk_ends_the_run_without_loss_and_a_resume_completes_it(runs: CollectionRuns) -> None:
    collector = runs.start(partial(limit_file_size, 8000), num_samples_in_parallel=4)
    assert collector.wait() == 1
    done = len(runs.recorded())
    assert 4 <= done < 12
    assert "cannot write results/rollouts.jsonl: File too large; free disk space" in collector.output
    assert (
        f"The {done} rollouts recorded so far are safe; continue with +resume_from_cache=true"
        in collector.output
    )
    assert "Traceback" not in collector.output
    assert runs.output.read_bytes().endswith(b"\n")
    assert runs.check_ledger()["not_run"] == 12 - done
    runs.finish()


def test_full_file_system_loses_no_recorded_rollout(runs: CollectionRuns) -> None:
    collect = subprocess.list2cmdline([str(BIN / "ng_collect_rollouts"), *runs.arguments()])
    script = f"""
        mkdir results kept && mount -t tmpfs -o size=36k tmpfs results || exit 99
        {collect} > first.log 2>&1; echo $? > first.code
        cp results/* kept/
        mount -o remount,size=10m results
        {collect} +resume_from_cache=true > second.log 2>&1; echo $? > second.code
        rm -r kept/* && cp results/* kept/
    """
    run = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], cwd=runs.folder, capture_output=True, text=True, check=False
    )
    if not runs.folder.joinpath("first.code").exists():
        pytest.skip(f"no file system can be mounted here: {run.stderr}")
    first = runs.folder.joinpath("first.log").read_text()
    assert runs.folder.joinpath("first.code").read_text() == "1\n", first
    assert "No space left on device" in first and "Traceback" not in first
    second = runs.folder.joinpath("second.log").read_text()
    assert runs.folder.joinpath("second.code").read_text() == "0\n", second
    runs.folder.joinpath("results").rmdir()
    runs.folder.joinpath("kept").rename(runs.output.parent)
    runs.check_complete()


def test_full_disk_while_planning_leaves_the_earlier_run_unchanged(runs: CollectionRuns) -> None:
    runs.finish()
    before = {path: path.read_bytes() for path in runs.output.parent.iterdir()}
    collector = runs.start(partial(limit_file_size, 1000))
    assert collector.wait() == 1
    assert "cannot write results/rollouts_materialized_inputs.jsonl: File too large" in collector.output
    assert {path: path.read_bytes() for path in runs.output.parent.iterdir()} == before


@pytest.mark.parametrize("output", ["tasks.jsonl/below/rollouts.jsonl", "/proc/rollouts.jsonl", "."])
def test_unwritable_output_is_reported_before_the_first_request(runs: CollectionRuns, output: str) -> None:
    before = sorted(runs.folder.iterdir())
    collector = runs.start(output_jsonl_fpath=output)
    assert collector.wait() != 0
    assert output in collector.output and "+output_jsonl_fpath=" in collector.output
    assert "Traceback" not in collector.output
    assert not runs.adder.request_counts
    assert sorted(path for path in runs.folder.iterdir() if path != collector.log) == before


def test_second_collector_on_the_same_output_is_rejected_and_the_first_continues(
    runs: CollectionRuns,
) -> None:
    runs.adder.override = gate = Gate(6)
    first = runs.start(num_samples_in_parallel=1)
    first.wait_until(lambda: gate.waiting == 1)
    for second in (runs.start(), runs.resume()):
        assert second.wait() == 2
        assert f"process {first.pid} on " in second.output
        assert "is collecting into results/rollouts.jsonl" in second.output
        assert "Traceback" not in second.output
    gate.open()
    assert first.wait() == 0
    runs.check_complete()
    assert runs.adder.request_counts.total() == 12


def test_second_collector_is_rejected_whatever_happens_to_the_files_of_the_first(
    runs: CollectionRuns,
) -> None:
    runs.adder.override = gate = Gate(6)
    first = runs.start(num_samples_in_parallel=1)
    first.wait_until(lambda: gate.waiting == 1)
    status, precious = status_path_for(runs.output), runs.folder / "precious"
    precious.write_text("precious")

    def reject_all() -> None:
        for second in (runs.start(), runs.resume()):
            assert second.wait() == 2 and "is collecting into" in second.output, second.output

    status.unlink()
    reject_all()
    status.unlink(missing_ok=True)
    status.symlink_to(precious)
    reject_all()
    for name, link in (("hard.jsonl", os.link), ("symbolic.jsonl", os.symlink)):
        other = runs.folder / "elsewhere" / name
        other.parent.mkdir(exist_ok=True)
        link(runs.output, other)
        for second in (runs.start(output_jsonl_fpath=other), runs.resume(output_jsonl_fpath=other)):
            assert second.wait() == 2
            assert f"another process is collecting into {other}" in second.output, second.output
    assert sorted(path.name for path in other.parent.iterdir()) == ["hard.jsonl", "symbolic.jsonl"]
    gate.open()
    assert first.wait() == 0
    runs.check_complete()
    assert runs.adder.request_counts.total() == 12
    assert precious.read_text() == "precious"


class Gate:
    """Holds back the responses to all questions from a number on until it is opened."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.waiting = 0
        self._opened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, number: int, times: int) -> None:
        if number >= self.first:
            self.waiting += 1
            self._loop = asyncio.get_running_loop()
            await self._opened.wait()

    def open(self) -> None:
        assert self._loop is not None, "no request is waiting"
        self._loop.call_soon_threadsafe(self._opened.set)


def test_sigterm_lets_running_rollouts_finish_and_starts_no_more(runs: CollectionRuns) -> None:
    runs.adder.override = gate = Gate(4)
    collector = runs.start(num_samples_in_parallel=4, stop_grace_s=60)
    collector.wait_until(lambda: len(runs.recorded()) == 4 and gate.waiting == 4)
    collector.send(signal.SIGTERM)
    collector.wait_until(lambda: "SIGTERM: running rollouts get 60 s to finish" in collector.output)
    gate.open()
    assert collector.wait() == 1
    assert "Stopped early: SIGTERM" in collector.output
    assert "12 planned = 8 succeeded + 0 failed + 4 not run" in collector.output
    assert "+resume_from_cache=true" in collector.output
    assert runs.recorded() == set(range(8)) == set(runs.adder.request_counts)
    assert runs.check_ledger() | {"succeeded": 8, "not_run": 4} == runs.check_ledger()
    runs.finish()
    assert runs.adder.request_counts.total() == 12


def test_ctrl_c_cancels_rollouts_that_do_not_finish_within_the_grace_period(runs: CollectionRuns) -> None:
    runs.adder.override = gate = Gate(4)
    collector = runs.start(num_samples_in_parallel=4, stop_grace_s=0.2)
    collector.wait_until(lambda: len(runs.recorded()) == 4 and gate.waiting == 4)
    collector.send(signal.SIGINT)
    assert collector.wait() == 1
    assert "12 planned = 4 succeeded + 0 failed + 8 not run (4 cancelled)" in collector.output
    assert {failure["_ng_failure_class"] for failure in runs.failures} == {"cancelled"}
    gate.open()
    runs.finish()


@pytest.mark.parametrize("settings", [{}, PROCESSES], ids=["local", "processes"])
def test_second_ctrl_c_exits_at_once(runs: CollectionRuns, settings: dict[str, object]) -> None:
    runs.adder.override = gate = Gate(4)
    collector = runs.start(num_samples_in_parallel=4, stop_grace_s=3600, **settings)
    collector.wait_until(lambda: gate.waiting == 4 and len(runs.recorded()) >= 4)
    workers = children_of(collector.pid)
    collector.send(signal.SIGINT)
    collector.wait_until(lambda: "repeat to stop immediately" in collector.output)
    collector.send(signal.SIGINT)
    assert collector.wait() == 1  # within much less than the grace period of an hour
    assert "12 planned = 4 succeeded + 0 failed + 8 not run (4 cancelled)" in collector.output
    assert "Traceback" not in collector.output
    assert not any(map(is_running, workers))
    gate.open()
    runs.finish()


def test_too_large_share_of_failures_ends_the_run_early(runs: CollectionRuns) -> None:
    async def refuse(number: int, times: int) -> Output | None:
        await asyncio.sleep(0.01)
        return failing(400) if number % 2 else None

    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 200)
    runs.adder.override = refuse
    collector = runs.start(num_samples_in_parallel=4, max_failure_rate=0.2)
    assert collector.wait() == 1
    assert "Stopped early: more failures than max_failure_rate=0.2 allows" in collector.output
    assert "data: policy_model/v1/responses 400" in collector.output
    assert runs.check_ledger()["not_run"] > 100
    runs.adder.override = no_override
    runs.finish()


def test_too_many_failures_end_the_run_early(runs: CollectionRuns) -> None:
    async def refuse(number: int, times: int) -> Output | None:
        return failing(400) if number in (0, 2, 3) else None

    runs.adder.override = refuse
    collector = runs.start(num_samples_in_parallel=1, max_failure_rate=2)
    assert collector.wait() == 1
    assert "Stopped early: more failures than max_failure_rate=2 allows" in collector.output
    assert "12 planned = 1 succeeded + 3 failed (3 data) + 8 not run" in collector.output
    assert runs.start(num_samples_in_parallel=1, max_failure_rate=3).wait() == 1
    assert runs.check_ledger()["not_run"] == 0
    runs.adder.override = no_override
    runs.finish()


def test_failures_within_the_limit_are_in_the_exit_code_and_the_ledger(runs: CollectionRuns) -> None:
    async def refuse(number: int, times: int) -> Output | None:
        return failing(400) if number == 5 else None

    runs.adder.override = refuse
    collector = runs.start(max_failure_rate=0.5)
    assert collector.wait() == 1
    assert "12 planned = 11 succeeded + 1 failed (1 data) + 0 not run" in collector.output
    assert runs.check_ledger()["failed"] == {"data": 1}
    [failure] = runs.failures
    assert failure["_ng_task_index"] == 5 and failure["http_status"] == 400 and failure["attempts"] == 2
    runs.adder.override = no_override
    assert "Resuming: 12 rollouts planned, 11 done, 1 remaining" in runs.finish().output


def test_endpoint_that_fails_often_loses_no_rollout(runs: CollectionRuns) -> None:
    chance = random.Random(7)

    async def fail_often(number: int, times: int) -> Output | None:
        return failing(500) if chance.random() < 0.1 else None

    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 100)
    runs.adder.override = fail_often
    collector = runs.start(num_samples_in_parallel=50)  # with the default number of failures per rollout
    assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert runs.adder.request_counts.total() > 104


def test_hanging_calls_end_at_their_deadline_and_are_retried(runs: CollectionRuns) -> None:
    async def hang_now_and_then(number: int, times: int) -> Output | None:
        return await hang(number, times) if number % 10 == 0 and times == 1 else None

    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 40)
    runs.adder.override = hang_now_and_then
    collector = runs.start(call_timeout_s=2)
    assert collector.wait() == 0, collector.output
    runs.check_complete()
    # Others are called again only if the machine is so slow that they, too, reach the deadline.
    assert all(runs.adder.request_counts[number] > 1 for number in (0, 10, 20, 30))


def test_calls_that_always_hang_are_infrastructure_failures_and_complete_on_resume(
    runs: CollectionRuns,
) -> None:
    async def hang_on_one(number: int, times: int) -> Output | None:
        return await hang(number, times) if number == 3 else None

    runs.adder.override = hang_on_one
    collector = runs.start(call_timeout_s=0.5, max_attempts=1)
    assert collector.wait() == 1
    failure = runs.failure_of(3)
    assert failure["_ng_failure_class"] == "infrastructure"
    assert "within 0.5 s" in failure["error_message"]
    runs.adder.override = no_override
    runs.finish()


def test_only_the_rollouts_of_a_killed_worker_are_played_again(runs: CollectionRuns) -> None:
    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 60)
    runs.adder.override = gate = Gate(20)
    collector = runs.start(num_samples_in_parallel=8, **PROCESSES)
    collector.wait_until(lambda: gate.waiting == 8 and len(runs.recorded()) == 20)
    os.kill(children_of(collector.pid)[0], signal.SIGKILL)
    collector.wait_until(lambda: gate.waiting == 12)
    gate.open()
    assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert "rollouts to play again: 4" in collector.output
    assert sorted(runs.adder.request_counts.values()) == [1] * 56 + [2] * 4


def test_workers_that_keep_dying_end_the_run_with_a_message(runs: CollectionRuns) -> None:
    runs.adder.override = hang
    collector = runs.start(**PROCESSES)
    deaths = 0
    while collector.is_running and deaths < 50:
        for worker in children_of(collector.pid)[:1]:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                deaths += 1
    assert collector.wait() == 1
    assert "WorkerError: workers died " in collector.output and "+resume_from_cache=true" in collector.output
    runs.adder.override = no_override
    runs.finish()


def serve(runs: CollectionRuns, **settings: object) -> NgRun:
    """Runs the servers in their own processes; later collectors use them."""
    served = NgRun(list(runs.config_paths), {**runs.endpoint.settings, **settings}, cwd=runs.folder)
    runs.settings = {"hosting": "served", "head_server.port": served.head.port}
    return served


def test_agent_that_dies_and_is_restarted_loses_no_rollout(runs: CollectionRuns) -> None:
    runs.adder.override = gate = Gate(4)
    with serve(runs, restart_policy="on_failure") as served:
        collector = runs.start(num_samples_in_parallel=4, retry_backoff_s=1, max_attempts=10)
        collector.wait_until(lambda: gate.waiting == 4)
        os.kill(served.pid_of(runs.agent), signal.SIGKILL)
        collector.wait_until(lambda: f"restarting {runs.agent}" in served.output)
        gate.open()
        assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert runs.manifest["ledger"]["retried"] >= 4


def test_ng_run_that_ends_stops_the_run_and_a_resume_completes_it(runs: CollectionRuns) -> None:
    runs.adder.override = gate = Gate(4)
    with serve(runs) as served:
        collector = runs.start(num_samples_in_parallel=4)
        collector.wait_until(lambda: gate.waiting == 4 and len(runs.recorded()) == 4)
        os.kill(served.pid_of(runs.agent), signal.SIGKILL)
        gate.open()
        assert served.wait() == 1
        assert collector.wait() == 1, collector.output
    check_stopped_by_end_of_ng_run(runs, collector, 4)


def test_killed_ng_run_stops_the_run_and_a_resume_completes_it(runs: CollectionRuns) -> None:
    runs.adder.override = gate = Gate(4)
    with serve(runs) as served:
        collector = runs.start(num_samples_in_parallel=4)
        collector.wait_until(lambda: gate.waiting == 4 and len(runs.recorded()) == 4)
        served.process.kill()
        assert collector.wait() == 1, collector.output
    gate.open()
    check_stopped_by_end_of_ng_run(runs, collector, 4)


def check_stopped_by_end_of_ng_run(runs: CollectionRuns, collector: Collector, done: int) -> None:
    assert collector.output.count("ng_run has ended: neither ") == 1, collector.output
    assert f"12 planned = {done} succeeded + 0 failed + {12 - done} not run" in collector.output
    assert "+resume_from_cache=true" in collector.output and "Traceback" not in collector.output
    assert not runs.failures
    runs.settings = {}
    runs.adder.override = no_override
    runs.finish()
