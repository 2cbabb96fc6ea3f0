"""Rows that crash their worker process: all others succeed, also after the collector was killed."""

from collections.abc import Collection

from tests.support.collecting import LONGEST_S, CollectionRuns, Collector, slow
from tests.support.unruly import unruly

BAD = {0, 1, 2, 3, 4, 9, 14, 15, 20, 25, 26, 33, 38, 39}
CODE = """
import ctypes, os, signal

CRASHES = [
    lambda: os._exit(3),
    lambda: os.kill(os.getpid(), signal.SIGKILL),
    lambda: ctypes.string_at(0),
]

async def verify(self, body: dict) -> dict:
    number = int(body["expected_answer"]) - 1
    if number in BAD:
        sys.stderr.write("crashing\\n")
        CRASHES[number % 3]()
    return {**body, "reward": 1.0}
Server.verify = verify
"""
WORKERS = {"executor": "processes", "num_workers": 2}


def crashing(runs: CollectionRuns, bad: Collection[int], rollouts: int) -> CollectionRuns:
    return unruly(runs, f"BAD = {set(bad)}\n{CODE}", rollouts=rollouts)


def crashes_in(collector: Collector) -> int:
    return collector.output.count("crashing\n")


def test_fourteen_crashing_rows_among_forty_fail_and_all_others_succeed(runs: CollectionRuns) -> None:
    runs = crashing(runs, BAD, 40)
    collector = runs.start(**WORKERS)
    assert collector.wait(2 * LONGEST_S) == 1, collector.output  # about 30 workers start one after another
    ledger = runs.check_ledger()
    assert ledger["succeeded"] == 26 and ledger["failed"] == {"infrastructure": 14}, collector.output
    assert {one["_ng_task_index"] for one in runs.failures} == BAD and len(runs.failures) == 14
    for number, how in enumerate(["exit code 3", "Killed", "Segmentation fault"]):
        message = f"its worker died ({how}) while it played only this rollout"
        assert runs.failure_of(number)["error_message"].startswith(message)


def test_resumed_run_plays_rows_that_crashed_workers_last_and_alone(runs: CollectionRuns) -> None:
    runs.adder.override = slow
    bad = {0, 1, 5}
    runs = crashing(runs, bad, 120)
    collector = runs.start(**WORKERS)
    collector.wait_until(lambda: len(runs.recorded()) >= 10)
    collector.kill()
    succeeded = runs.recorded()
    assert {"0:0", "1:0", "5:0"} <= set(runs.manifest["worker_deaths"])
    resumed = runs.resume(**WORKERS)
    resumed.wait_until(lambda: runs.recorded() > succeeded or crashes_in(resumed) > 0)
    assert runs.recorded() > succeeded and not crashes_in(resumed), "it starts with other rows"
    assert resumed.wait() == 1
    assert runs.check_ledger()["succeeded"] == 117
    again = runs.resume(**WORKERS)
    assert again.wait() == 1
    assert crashes_in(again) == 3, "rows that have failed get a worker to themselves from the beginning"
    assert {one["_ng_task_index"] for one in runs.failures} == bad
