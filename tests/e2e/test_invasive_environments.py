"""Environments whose code attacks the process: it raises KeyboardInterrupt, stops the event loop, forks.

Whatever it does, no key is recorded twice, and the run goes on or stops with a hint how to resume it.
"""

import pytest

from nemo_gym.path_utils import aggregate_metrics_path_for
from tests.support.collecting import CollectionRuns
from tests.support.commands import NgRun, processes_in, wait_until
from tests.support.unruly import unruly

HOSTINGS: dict[str, dict[str, object]] = {
    "embedded": {},
    "processes": {"executor": "processes", "num_workers": 2},
}
PLACES = {
    "verify": "async def misbehave(self): {code}\nServer.misbehave = misbehave\n",
    "sync verify": (
        "def verify(self, body: dict) -> dict:\n"
        "    if body['expected_answer'] == '4': {code}\n"
        "    return {{**body, 'reward': 1.0}}\n"
        "Server.verify = verify\n"
    ),
    "seed": (
        "async def seed_session(self, body: dict) -> dict:\n"
        "    if body['expected_answer'] == '4': {code}\n"
        "    return {{}}\n"
        "Server.seed_session = seed_session\n"
    ),
}


def invasive(runs: CollectionRuns, code: str, place: str = "verify") -> CollectionRuns:
    return unruly(runs, f"import os\n{PLACES[place].format(code=code)}")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit", "SystemExit"])
def test_exception_that_ends_programs_fails_only_its_rollout(
    runs: CollectionRuns, error: str, place: str
) -> None:
    runs = invasive(runs, f"raise {error}", place)
    collector = runs.start()
    assert collector.wait() == 1, collector.output
    assert runs.check_ledger()["failed"] == {"data": 1}, collector.output
    assert error in runs.failure_of(3)["error_message"]
    unruly(runs).finish()


def test_keyboard_interrupt_in_a_task_of_an_environment_does_not_end_the_run(runs: CollectionRuns) -> None:
    runs = unruly(
        runs,
        "tasks = set()\n"
        "async def interrupt(): raise KeyboardInterrupt\n"
        "async def misbehave(self):\n"
        "    tasks.add(asyncio.create_task(interrupt()))\n"
        "    await asyncio.wait(tasks)\n"
        "Server.misbehave = misbehave\n",
    )
    collector = runs.start()
    assert collector.wait() == 0, collector.output
    assert "the code of an environment raised KeyboardInterrupt(); continuing" in collector.output
    runs.check_complete()


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_environment_that_stops_the_event_loop_does_not_stop_the_run(
    runs: CollectionRuns, hosting: str
) -> None:
    runs = invasive(runs, "asyncio.get_running_loop().stop()")
    collector = runs.start(**HOSTINGS[hosting])
    assert collector.wait() == 0, collector.output
    assert "the code of an environment stopped the event loop; continuing" in collector.output
    runs.check_complete()


CANCELS = "[task.cancel() for task in asyncio.all_tasks()]"


def test_environment_that_cancels_all_tasks_ends_an_embedded_run_that_can_be_resumed(
    runs: CollectionRuns,
) -> None:
    runs = invasive(runs, CANCELS)
    collector = runs.start(num_samples_in_parallel=4)
    assert collector.wait() == 1, collector.output
    assert "cancelled all tasks of this process" in collector.output
    assert "+resume_from_cache=true" in collector.output and "Traceback" not in collector.output
    assert set(runs.check_ledger()["failed"]) <= {"infrastructure"}
    unruly(runs).finish()


def test_environment_that_cancels_all_tasks_of_a_worker_fails_only_its_rollout(runs: CollectionRuns) -> None:
    runs = invasive(runs, CANCELS)
    collector = runs.start(**HOSTINGS["processes"])
    assert collector.wait() == 1, collector.output
    assert runs.check_ledger()["succeeded"] == 11 and runs.failure_of(3)
    unruly(runs).finish()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hosting", HOSTINGS)
def test_fork_that_returns_into_the_event_loop_is_ended_and_writes_nothing(
    runs: CollectionRuns, hosting: str, place: str
) -> None:
    runs = invasive(runs, "os.fork()", place)
    collector = runs.start(**HOSTINGS[hosting])
    assert collector.wait() == 0, collector.output
    assert "returned from that code; it was ended" in collector.output
    assert collector.output.count("Result:") == 1
    runs.check_complete()
    assert wait_until(lambda: not processes_in(runs.folder))


def test_fork_that_waits_in_the_event_loop_is_ended_too(runs: CollectionRuns) -> None:
    runs = invasive(runs, "os.fork(); await asyncio.sleep(0.2)")
    collector = runs.start()
    assert collector.wait() == 0, collector.output
    assert "returned from that code; it was ended" in collector.output
    runs.check_complete()
    assert wait_until(lambda: not processes_in(runs.folder))


SERVED = """
async def verify(self, body: dict) -> dict:
    answer = body["expected_answer"]
    if answer == "3":
        asyncio.get_running_loop().stop()
    if answer == "4":
        raise KeyboardInterrupt
    if answer == "5":
        os.fork()
    return {**body, "reward": 1.0}
Server.verify = verify
"""


def test_server_of_ng_run_survives_such_environments(runs: CollectionRuns) -> None:
    runs = unruly(runs, f"import os\n{SERVED}")
    with NgRun(list(runs.config_paths), runs.endpoint.settings, cwd=runs.folder) as served:
        collector = runs.start(hosting="served", **{"head_server.port": served.head.port})
        assert collector.wait() == 1, collector.output
        assert runs.check_ledger()["failed"] == {"data": 1}, collector.output
        assert "KeyboardInterrupt" in runs.failure_of(3)["error_message"]
        log = "\n".join(served.lines_of("unruly"))
        assert "stopped the event loop; continuing" in log and "it was ended" in log
        assert served.process.poll() is None and "died" not in served.output
    unruly(runs).finish()


LEAVES = """
import os

async def verify(self, body: dict) -> dict:
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    if body["expected_answer"] == "4":
        raise ValueError("after the working directory has changed")
    return {**body, "reward": 1.0}

Server.verify = verify
"""


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_environment_that_changes_the_working_directory_changes_nothing_else(
    runs: CollectionRuns, hosting: str
) -> None:
    runs = unruly(runs, LEAVES)
    collector = runs.start(**HOSTINGS[hosting])
    assert collector.wait() == 1, collector.output
    assert "12 planned = 11 succeeded + 1 failed (1 data) + 0 not run" in collector.output
    assert runs.check_ledger()["failed"] == {"data": 1}
    assert "Aggregate metrics: results/rollouts_aggregate_metrics.json" in collector.output
    assert aggregate_metrics_path_for(runs.output).exists()
    assert "after the working directory has changed" in runs.failure_of(3)["error_message"]
    assert not list(runs.folder.rglob("elsewhere/**/*.json*"))
    unruly(runs).finish()
