"""Collections killed at any instant: after a resume every rollout is in the output exactly once."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.collecting import CollectionRuns, Collector, Fault, slow
from tests.support.commands import processes_in, wait_until
from tests.support.faults import die_before_step, die_in_write

KILLS = 20
"""`make soak` runs a campaign of more kills, which adds faults."""
SEED = int(os.environ.get("SOAK_SEED", str(time.time_ns() % 1_000_000)))


def kill_at_random(runs: CollectionRuns, kills: int, longest_s: float, **settings: object) -> None:
    """Kill a collection this many times and resume it each time; a complete collection is replaced by a new
    one."""
    instants = random.Random(SEED)
    sys.stdout.write(f"SOAK_SEED={SEED}\n")
    is_complete = False
    while kills:
        if is_complete:
            runs.check_complete()
            runs.adder.request_counts.clear()
        done, counts = runs.recorded(), runs.adder.request_counts.copy()
        collector = runs.start(**settings) if is_complete else runs.resume(**settings)
        collector.process.join(instants.uniform(0, longest_s))
        collector.kill()
        code = collector.process.exitcode
        assert code in (0, -signal.SIGKILL), collector.output
        kills -= code != 0
        if not is_complete:
            assert done <= runs.recorded(), "a rollout that was recorded is lost"
            repeated = {number for number in done if runs.adder.request_counts[number] != counts[number]}
            assert not repeated, f"recorded rollouts were run again: {repeated}"
        is_complete = code == 0


def test_collection_killed_at_random_instants_has_every_rollout_once(runs: CollectionRuns) -> None:
    runs.adder.override = slow
    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 500)
    kill_at_random(runs, KILLS, 1.0)
    runs.finish()


def test_collection_in_processes_killed_at_random_instants_has_every_rollout_once(
    runs: CollectionRuns,
) -> None:
    runs.adder.override = slow
    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 300)
    kill_at_random(runs, max(3, KILLS // 6), 4.0, executor="processes", num_workers=2)
    runs.finish()
    assert wait_until(lambda: not processes_in(runs.folder)), "a worker outlived its driver"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_interrupted_write_loses_only_that_rollout(runs: CollectionRuns, share: float) -> None:
    collector = runs.start(partial(die_in_write, runs.output.name, 6, share), num_samples_in_parallel=4)
    assert collector.wait() == -signal.SIGKILL
    assert len(runs.recorded()) == 5
    torn = runs.output.read_bytes().rpartition(b"\n")[2]
    assert bool(torn) == (share > 0)
    log = runs.finish().output
    assert ("rollouts.jsonl:6: the line is incomplete or not JSON; it was moved to" in log) == bool(torn)
    kept = b"".join(path.read_bytes() for path in runs.output.parent.glob("*.torn"))
    assert kept == (torn + b"\n" if torn else b"")


def test_rollout_whose_line_lacks_only_the_newline_is_not_played_again(runs: CollectionRuns) -> None:
    assert runs.start(num_samples_in_parallel=4).wait() == 0
    runs.output.write_bytes(runs.output.read_bytes()[:-1])
    runs.adder.request_counts.clear()
    runs.finish()
    assert not runs.adder.request_counts


def test_incomplete_line_is_reported_set_aside_and_its_rollout_played_again(runs: CollectionRuns) -> None:
    assert runs.start().wait() == 0
    lines = runs.output.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4][:50] + b"\n"
    runs.output.write_bytes(b"".join(lines))
    assert "rollouts.jsonl:5: the line is incomplete or not JSON; it was moved to" in runs.finish().output
    [kept] = runs.output.parent.glob("*.torn")
    assert kept.read_bytes() == lines[4]


def test_kill_before_any_file_change_loses_nothing(runs: CollectionRuns) -> None:
    """For a new collection that replaces an old one."""
    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 3)
    runs.finish()

    def start(fault: Fault) -> Collector:
        runs.adder.request_counts.clear()
        return runs.start(fault)

    assert 20 < steps_until_it_survives(start, runs) < 100


def test_kill_before_any_step_of_repairing_a_file_loses_nothing(runs: CollectionRuns) -> None:
    runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 4)
    runs.finish()
    whole = runs.output.read_bytes()
    first, second, third, fourth = whole.splitlines(keepends=True)

    def start(fault: Fault) -> Collector:
        runs.output.write_bytes(first + second[:40] + b"\n" + third + fourth[:40])
        return runs.resume(fault)

    assert steps_until_it_survives(start, runs, most=10) == 10  # later steps are the same in every run


def steps_until_it_survives(
    start: Callable[[Fault], Collector], runs: CollectionRuns, most: int = 100
) -> int:
    """Kill a collection before its first file change, then another before its second, …; resume each."""
    for number in range(1, most + 1):
        if start(partial(die_before_step, number, runs.output.parent)).wait() == 0:
            runs.check_complete()
            return number - 1
        runs.finish()
    return most
