"""Environments whose code hangs, exits or ignores its cancellation: no rollout stops a run."""

import os
import signal

import pytest

from scripts.scripted_endpoint import Output, function_call
from tests.support.collecting import CollectionRuns, hang, no_override
from tests.support.commands import processes_in, wait_until
from tests.support.unruly import unruly

HANGS = "async def hang(self): await asyncio.Event().wait()\nServer.misbehave = hang\n"
NEVER_ENDS = "async def deaf(self): await never_end()\nServer.misbehave = deaf\n"
PROCESSES = {"executor": "processes", "num_workers": 2}
TIMEOUT_S = 2
"""A rollout that hangs always reaches it. Others take milliseconds, even if four play on a busy machine."""
FOUR_AT_ONCE = {"num_samples_in_parallel": 4}


def behave(runs: CollectionRuns) -> None:
    """Repair the environment and finish the run."""
    unruly(runs).finish()


@pytest.mark.parametrize("hosting", ["local", "processes"])
def test_verifier_that_hangs_is_a_failed_rollout(runs: CollectionRuns, hosting: str) -> None:
    runs = unruly(runs, HANGS)
    collector = runs.start(call_timeout_s=1.5, max_attempts=2, executor=hosting, **FOUR_AT_ONCE)
    assert collector.wait() == 1, collector.output
    assert runs.check_ledger()["failed"] == {"infrastructure": 1}
    failure = runs.failure_of(3)
    assert failure["attempts"] == 2
    assert "no response to POST /verify within 1.5 s" in failure["error_message"]
    behave(runs)


def test_rollout_that_kills_its_worker_does_not_fail_others(runs: CollectionRuns) -> None:
    runs = unruly(runs, "import os\nasync def die(self): os._exit(9)\nServer.misbehave = die\n")
    collector = runs.start(**PROCESSES)
    assert collector.wait() == 1, collector.output
    [failure] = runs.failures
    assert failure["_ng_task_index"] == 3 and failure["error_type"] == "WorkerDied"
    assert runs.check_ledger()["succeeded"] == 11
    behave(runs)


def test_hanging_tool_is_retried(runs: CollectionRuns) -> None:
    async def stall_once(number: int, times: int) -> Output | None:
        return [function_call("stall")] if number == 5 and times == 1 else None

    runs = unruly(runs)
    runs.adder.override = stall_once
    assert runs.start(call_timeout_s=TIMEOUT_S, **FOUR_AT_ONCE).wait() == 0
    runs.check_complete()
    assert runs.adder.request_counts[5] == 2 and runs.manifest["ledger"]["retried"] == 1


def test_rollout_that_times_out_reports_what_it_was_doing(runs: CollectionRuns) -> None:
    runs = unruly(runs, HANGS)
    collector = runs.start(rollout_timeout_s=TIMEOUT_S, max_attempts=1, **FOUR_AT_ONCE)
    assert collector.wait() == 1
    assert runs.check_ledger()["failed"] == {"timeout": 1}
    failure = runs.failure_of(3)
    assert failure["error_type"] == "TimeoutError"
    assert failure["error_message"].startswith(f"not finished after {TIMEOUT_S} s; last activity: ")
    assert failure["error_message"].endswith(" s in verification")
    behave(runs)


def test_code_that_ignores_its_cancellation_is_abandoned(runs: CollectionRuns) -> None:
    both = [unruly(runs, NEVER_ENDS, below=hosting) for hosting in ("local", "processes")]
    settings = {"rollout_timeout_s": TIMEOUT_S, "max_attempts": 1, **FOUR_AT_ONCE}
    # At the same time, because each takes several seconds.
    collectors = [one.start(executor=one.folder.name, **settings) for one in both]
    shutting_down = unruly(runs, "async def end(self): await never_end()\nServer.end = end\n")
    assert shutting_down.start().wait() == 0
    shutting_down.check_complete()
    for one, collector in zip(both, collectors, strict=True):
        assert collector.wait() == 1, collector.output
        assert "12 planned = 11 succeeded + 1 failed (1 timeout) + 0 not run" in collector.output
        assert one.check_ledger()["failed"] == {"timeout": 1}
        assert wait_until(lambda one=one: not processes_in(one.folder))
        behave(one)


def test_verifier_that_blocks_a_thread_is_abandoned(runs: CollectionRuns) -> None:
    blocking = (
        "def verify(self, body: dict) -> dict:\n"
        "    if body['expected_answer'] == '4': time.sleep(3600)\n"
        "    return {**body, 'reward': 1.0}\n"
        "Server.verify = verify\n"
    )
    runs = unruly(runs, blocking)
    collector = runs.start(call_timeout_s=TIMEOUT_S, max_attempts=1, **FOUR_AT_ONCE)
    assert collector.wait() == 1
    assert runs.check_ledger()["failed"] == {"infrastructure": 1}
    assert runs.failure_of(3)["_ng_failure_class"] == "infrastructure"
    behave(runs)


@pytest.mark.parametrize("sync", ["async def", "def"])
def test_verifier_that_exits_is_a_failed_rollout(runs: CollectionRuns, sync: str) -> None:
    exiting = (
        f"{sync} verify(self, body: dict) -> dict:\n"
        "    if body['expected_answer'] == '4': sys.exit('no licence')\n"
        "    return {**body, 'reward': 1.0}\n"
        "Server.verify = verify\n"
    )
    runs = unruly(runs, exiting)
    collector = runs.start()
    assert collector.wait() == 1
    assert runs.check_ledger()["failed"] == {"data": 1}, collector.output
    assert "no licence" in runs.failures[0]["error_message"]
    behave(runs)


def test_verifier_that_cancels_itself_fails_its_rollout_and_not_the_run(runs: CollectionRuns) -> None:
    runs = unruly(runs, "async def cancel(self): raise asyncio.CancelledError\nServer.misbehave = cancel\n")
    collector = runs.start()
    assert collector.wait() == 1
    assert runs.check_ledger()["failed"] == {"data": 1}, collector.output
    assert runs.failures[0]["error_type"] == "CancelledError" and runs.failures[0]["attempts"] == 2
    behave(runs)


@pytest.mark.parametrize("hosting", ["local", "processes"])
def test_ctrl_c_ends_a_hanging_start_up(runs: CollectionRuns, hosting: str) -> None:
    hanging = (
        "async def start(self):\n    sys.stderr.write('starting\\n')\n    await asyncio.Event().wait()\n"
    )
    runs = unruly(runs, hanging + "Server.start = start\n")
    collector = runs.start(executor=hosting)
    collector.wait_until(lambda: "starting\n" in collector.output)
    collector.send(signal.SIGINT)
    assert collector.wait() == 1, collector.output
    assert "Stopped early: Ctrl-C" in collector.output
    assert runs.check_ledger()["not_run"] == 12
    behave(runs)


@pytest.mark.parametrize("hosting", ["local", "processes"])
def test_second_ctrl_c_exits_although_the_event_loop_is_blocked(runs: CollectionRuns, hosting: str) -> None:
    blocking = "async def block(self):\n    sys.stderr.write('blocked\\n')\n    time.sleep(3600)\n"
    runs = unruly(runs, blocking + "Server.misbehave = block\n")
    collector = runs.start(num_samples_in_parallel=1, executor=hosting)
    collector.wait_until(lambda: "blocked\n" in collector.output)
    collector.send(signal.SIGINT)
    if hosting == "processes":
        collector.wait_until(lambda: "repeat to stop immediately" in collector.output)
        collector.send(signal.SIGINT)
    else:  # a blocked loop cannot confirm the signal, so it is sent until the process exits
        assert wait_until(lambda: collector.send(signal.SIGINT) or not collector.is_running)
    assert collector.wait() == 1, collector.output
    assert "+resume_from_cache=true" in collector.output
    assert wait_until(lambda: not processes_in(runs.folder))
    assert runs.recorded() == {0, 1, 2}
    behave(runs)


def test_blocked_worker_ends_when_its_driver_is_killed(runs: CollectionRuns) -> None:
    blocking = "async def block(self):\n    sys.stderr.write('blocked\\n')\n    time.sleep(3600)\n"
    runs = unruly(runs, blocking + "Server.misbehave = block\n")
    collector = runs.start(**PROCESSES)
    collector.wait_until(lambda: "blocked\n" in collector.output)
    collector.kill()
    assert wait_until(lambda: not processes_in(runs.folder))
    behave(runs)


FORKS = """
import os, signal
async def fork(self):
    if not os.fork():
        signal.pause()
Server.misbehave = fork
"""


def test_process_that_a_verifier_forked_does_not_keep_the_output_of_a_killed_run(
    runs: CollectionRuns,
) -> None:
    async def hang_later(number: int, times: int) -> Output | None:
        return await hang(number, times) if number > 3 else None

    runs = unruly(runs, FORKS)
    runs.adder.override = hang_later
    collector = runs.start(num_samples_in_parallel=1)
    collector.wait_until(lambda: 3 in runs.recorded())
    assert runs.resume().wait() == 2
    collector.kill()
    runs.adder.override = no_override
    [left] = processes_in(runs.folder)
    try:
        behave(runs)
    finally:
        os.kill(left, signal.SIGKILL)


BLOCKS = "async def block(self): time.sleep({seconds})\nServer.misbehave = block\n"


def test_rollout_that_blocks_its_worker_beyond_its_deadline_is_the_only_one_charged(
    runs: CollectionRuns,
) -> None:
    runs = unruly(runs, BLOCKS.format(seconds=3600))
    collector = runs.start(**PROCESSES, rollout_timeout_s=5, max_attempts=1)
    assert collector.wait() == 1, collector.output
    assert runs.check_ledger()["failed"] == {"timeout": 1}, collector.output
    failure = runs.failure_of(3)
    assert failure["error_type"] == "EventLoopBlocked" and failure["attempts"] == 1
    assert "unruly: Server.verify has blocked the event loop for" in failure["error_message"]
    assert failure["error_message"].endswith(" in block")
    assert runs.check_ledger()["succeeded"] == 11
    behave(runs)


def test_verifier_that_blocks_the_event_loop_is_named_once(runs: CollectionRuns) -> None:
    runs = unruly(runs, BLOCKS.format(seconds=4))
    collector = runs.start()
    assert collector.wait() == 0, collector.output
    assert collector.output.count("unruly: Server.verify has blocked the event loop for") == 1
    assert "app.py:" in collector.output and "`verify_in: thread`" in collector.output
    runs.check_complete()
