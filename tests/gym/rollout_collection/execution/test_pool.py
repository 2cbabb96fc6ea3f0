"""The worker pool, over links within this event loop: one outcome per rollout, whatever workers do."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from nemo_gym.activity import Activity
from nemo_gym.errors import WorkerError
from nemo_gym.failures import FailureKind
from nemo_gym.http import RetryPolicy
from nemo_gym.records import Key
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy
from nemo_gym.rollout_collection.execution.executor import ExecutorState
from nemo_gym.rollout_collection.execution.link import Finished, Play, Ready, Report, StartFailed
from nemo_gym.rollout_collection.execution.pool import PoolPolicy, WorkerPool, shares_of
from nemo_gym.rollout_collection.execution.worker import Worker, WorkerPolicy
from nemo_gym.rollout_collection.outcome import Failure, Outcome, PlannedRollout, Success
from tests.support.memory_link import MemoryLink, RunWorker, WorkerCrash, WorkerEnd
from tests.support.virtual_time import run_in_virtual_time

AGENT = {"name": "agent"}
PATIENT = PoolPolicy(teardown_s=0.05, exit_s=5.0)
"""Short where tests wait for the delay to end; otherwise longer than any test takes."""
ROLLOUTS = RolloutPolicy(60.0, RetryPolicy(max_tries=1), teardown_s=0.05)
WORKERS = WorkerPolicy(flush_s=0.0, report_s=0.01)

PlayOne = Callable[[PlannedRollout], Awaitable[None]]


@dataclass
class Run:
    """One run of a pool."""

    rollouts: int
    shares: list[int]
    policy: PoolPolicy = PATIENT
    worker_deaths: Mapping[int, int] = field(default_factory=dict)
    """Deaths in earlier runs."""
    deaths: list[dict[int, int]] = field(default_factory=list)
    """What the pool has reported at each death of a worker that played something."""
    links: list[MemoryLink] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    pool: WorkerPool | None = None

    def play(self, worker: RunWorker, during: Callable[[WorkerPool], Awaitable[None]] | None = None) -> None:
        """Play all rollouts with such workers; `during` runs at the same time."""

        async def play() -> None:
            self.pool = pool = WorkerPool(partial(self._start, worker), self.shares, self.policy)
            pool.on_deaths = lambda deaths: self.deaths.append({key.task: one for key, one in deaths.items()})
            planned = map(self._planned, range(self.rollouts))
            beside = asyncio.ensure_future(during(pool)) if during is not None else None
            async with asyncio.timeout(30):
                await pool.run(planned, self.outcomes.append)
                if beside is not None:
                    await beside

        run_in_virtual_time(play())

    def _planned(self, number: int) -> PlannedRollout:
        deaths = self.worker_deaths.get(number, 0)
        return PlannedRollout(Key(number, 0), "agent", AGENT, b"{}", worker_deaths=deaths)

    async def _start(self, worker: RunWorker) -> MemoryLink:
        self.links.append(MemoryLink(worker))
        return self.links[-1]

    @property
    def failures(self) -> dict[int, Failure]:
        return {one.key.task: one for one in self.outcomes if isinstance(one, Failure)}

    def check_each_once(self) -> None:
        assert Counter(one.key.task for one in self.outcomes) == Counter(range(self.rollouts))


def playing(play: PlayOne) -> RunWorker:
    """A real worker that plays each rollout with this function."""

    async def attempt(rollout: PlannedRollout, activity: Activity) -> Outcome:
        await play(rollout)
        return Success(rollout.key, "agent", b"{}", {})

    def activity(rollout: PlannedRollout, attempt: int) -> Activity:
        return Activity(str(rollout.key), attempt=attempt)

    async def run_worker(end: WorkerEnd) -> None:
        await Worker(end, WORKERS).work(partial(Dispatcher, attempt, activity, ROLLOUTS))

    return run_worker


async def at_once(rollout: PlannedRollout) -> None: ...


async def forever(rollout: PlannedRollout) -> None:
    await asyncio.Event().wait()


def finished(rollouts: list[PlannedRollout]) -> Finished:
    return Finished([Success(one.key, "agent", b"{}", {}) for one in rollouts])


def dying(is_deadly: Callable[[list[int]], bool]) -> RunWorker:
    """A worker that crashes on a batch of rollouts that `is_deadly`; it finishes others at once."""

    async def run_worker(end: WorkerEnd) -> None:
        end.send(Ready())
        while isinstance(message := await end.receive(), Play):
            if is_deadly([one.key.task for one in message.rollouts]):
                raise WorkerCrash
            end.send(finished(message.rollouts))

    return run_worker


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the pool has no event for what these tests wait for
        await asyncio.sleep(0.001)


def test_every_rollout_is_played_once_and_all_workers_exit() -> None:
    run = Run(50, [3, 2])
    run.play(playing(at_once))
    run.check_each_once()
    assert not run.failures and len(run.links) == 2
    assert not any(link.was_killed for link in run.links)


def test_shares_add_up_to_the_limit_of_the_run_and_are_respected() -> None:
    assert shares_of(7, 3) == [3, 2, 2]
    assert shares_of(2, 8) == [1, 1]
    running, most = Counter[int](), Counter[int]()

    def worker_of(number: int) -> RunWorker:
        async def play(rollout: PlannedRollout) -> None:
            running[number] += 1
            most[number] = max(most[number], running[number])
            await asyncio.sleep(0.001)
            running[number] -= 1

        return playing(play)

    numbers = iter(range(3))

    async def run_worker(end: WorkerEnd) -> None:
        await worker_of(next(numbers))(end)

    run = Run(60, shares_of(7, 3))
    run.play(run_worker)
    run.check_each_once()
    assert most == {0: 3, 1: 2, 2: 2}


def test_rollouts_of_a_dead_worker_are_played_by_another(caplog: pytest.LogCaptureFixture) -> None:
    deaths = iter([True])
    run = Run(20, [4, 4])
    run.play(dying(lambda numbers: 5 in numbers and next(deaths, False)))
    run.check_each_once()
    assert not run.failures and len(run.links) == 3
    assert "died (exit code 1, WorkerCrash); rollouts to play again: 4" in caplog.text


def deadly_rollout(alone: list[bool]) -> Callable[[list[int]], bool]:
    """Rollout 5 kills its workers; `alone` says each time whether it was the only one in flight."""

    def is_deadly(numbers: list[int]) -> bool:
        if 5 in numbers:
            alone.append(len(numbers) == 1)
        return 5 in numbers

    return is_deadly


def test_rollout_that_kills_its_workers_does_not_fail_others() -> None:
    alone: list[bool] = []
    run = Run(20, [4, 4])
    run.play(dying(deadly_rollout(alone)))
    run.check_each_once()
    assert list(run.failures) == [5] and len(run.links) == 4
    assert run.failures[5].kind == "infrastructure" and run.failures[5].attempts == 3
    assert run.failures[5].message == (
        "its worker died (exit code 1, WorkerCrash) while it played only this rollout; 3 workers died that "
        "played it"
    )
    assert alone == [False, False, True]


def test_rollout_with_few_attempts_is_alone_before_it_fails() -> None:
    alone: list[bool] = []
    run = Run(20, [4, 4], replace(PATIENT, deaths_per_rollout=2))
    run.play(dying(deadly_rollout(alone)))
    run.check_each_once()
    assert list(run.failures) == [5] and alone == [False, True]


def test_suspect_stays_alone_while_another_worker_dies() -> None:
    """Rollouts 0 and 1 are suspects; 0 plays alone until the worker of 1 has died again, and succeeds."""
    deaths: Counter[int] = Counter()
    beside_the_suspect: list[int] = []

    async def run_worker(end: WorkerEnd) -> None:
        end.send(Ready())
        suspect: list[PlannedRollout] = []
        while isinstance(message := await end.receive(), Play):
            for one in message.rollouts:
                task = one.key.task
                if task == 0 and deaths[0]:
                    suspect = [one]
                    asyncio.get_running_loop().call_later(1.0, end.send, finished(suspect))
                elif suspect:
                    beside_the_suspect.append(task)
                    end.send(finished([one]))
                elif task in (0, 1):
                    deaths[task] += 1
                    raise WorkerCrash
                else:
                    await asyncio.sleep(0.01)
                    end.send(finished([one]))

    run = Run(30, [2, 2])
    run.play(run_worker)
    run.check_each_once()
    assert deaths == {0: 1, 1: 2} and list(run.failures) == [1]
    assert not beside_the_suspect


def test_suspects_are_played_last_and_hold_up_no_worker() -> None:
    """Rollout 0 kills a worker; all that were in flight with it wait until every other has started."""
    deaths = iter([True])
    batches: list[list[int]] = []

    def is_deadly(numbers: list[int]) -> bool:
        batches.append(numbers)
        return 0 in numbers and next(deaths, False)

    run = Run(40, [4, 4])
    run.play(dying(is_deadly))
    run.check_each_once()
    order = [number for batch in batches for number in batch]
    assert order[-4:] == [0, 1, 2, 3] and set(order[:-4]) == set(range(40))
    assert max(map(len, batches[-2:])) <= 2, "suspects play in small company"


def bad(numbers: Iterable[int]) -> RunWorker:
    """A worker that dies whenever it gets one of these."""
    deadly = set(numbers)
    return dying(lambda batch: not deadly.isdisjoint(batch))


SCATTERED = frozenset({0, 1, 2, 5, 8, 11, 12, 17, 20, 23, 26, 31, 38, 39})


@pytest.mark.parametrize("shares", [[1, 1], [8, 8], [40], [20, 20]])
@pytest.mark.parametrize("numbers", [SCATTERED, range(14), range(26, 40), range(10, 24)])
def test_rollouts_that_crash_their_workers_never_end_the_run(shares: list[int], numbers: set[int]) -> None:
    run = Run(40, shares)
    run.play(bad(numbers))
    run.check_each_once()
    assert set(run.failures) == set(numbers) and len(run.outcomes) == 40
    assert {one.error_type for one in run.failures.values()} == {"WorkerDied"}


def test_few_bad_rollouts_among_many_cost_three_workers_each() -> None:
    numbers = range(37, 10_000, 700)
    run = Run(10_000, [128, 128])
    run.play(bad(numbers))
    run.check_each_once()
    assert set(run.failures) == set(numbers)
    assert len(run.links) <= 3 * len(numbers) + 2


def test_suspects_of_an_earlier_run_are_played_last_and_the_worst_alone() -> None:
    batches: list[list[int]] = []

    def is_deadly(numbers: list[int]) -> bool:
        batches.append(numbers)
        return 3 in numbers

    run = Run(20, [4], worker_deaths={0: 1, 3: 3, 7: 2})
    run.play(dying(is_deadly))
    run.check_each_once()
    assert batches[-3:] == [[0], [3], [7]] and list(run.failures) == [3]
    assert run.failures[3].attempts == 1, "those of earlier runs are recorded already"
    assert len(run.links) == 2


def test_deaths_are_reported_at_once_with_those_of_earlier_runs() -> None:
    run = Run(6, [2], worker_deaths={1: 2})
    run.play(bad([1, 4]))
    assert run.deaths == [{3: 1, 4: 1}, {4: 2}, {1: 3}, {4: 3}]


def test_worker_that_ends_itself_charges_only_the_rollout_that_it_blames() -> None:
    """Rollout 5 blocks its worker beyond its deadline."""
    batches: list[list[int]] = []

    async def run_worker(end: WorkerEnd) -> None:
        end.send(Ready())
        while isinstance(message := await end.receive(), Play):
            batches.append([one.key.task for one in message.rollouts])
            if 5 in batches[-1]:
                message_text = "not finished at its deadline: blocked"
                raise WorkerCrash(Failure(Key(5, 0), AGENT, FailureKind.TIMEOUT, "Blocked", message_text))
            end.send(finished(message.rollouts))

    run = Run(20, [4])
    run.play(run_worker)
    run.check_each_once()
    assert list(run.failures) == [5] and run.failures[5].kind == "timeout"
    assert batches[2:4] == [[4, 6, 7, 8], [9, 10, 11, 12]], "the others go on as before"
    assert len(run.links) == 2 and not run.deaths


def test_workers_that_die_at_their_start_end_the_run_also_when_only_suspects_are_left() -> None:
    lives = iter([True])

    async def run_worker(end: WorkerEnd) -> None:
        if not next(lives, False):
            raise WorkerCrash
        await bad([0])(end)

    run = Run(1, [1], replace(PATIENT, deaths_in_a_row=3))
    with pytest.raises(WorkerError, match="4 times in a row without finishing a rollout"):
        run.play(run_worker)
    assert run.failures[0].kind == "cancelled"


def test_workers_that_all_die_end_the_run_with_an_error() -> None:
    run = Run(20, [2, 2], replace(PATIENT, deaths_in_a_row=3, deaths_per_rollout=100))
    with pytest.raises(WorkerError, match="4 times in a row without finishing a rollout") as error:
        run.play(dying(lambda numbers: True))
    assert "exit code 1" in str(error.value) and "+resume_from_cache=true" in str(error.value)
    taken = Counter(one.key.task for one in run.outcomes)
    assert set(taken.values()) <= {1}, "no more than one outcome per rollout"


def test_stopped_run_gives_rollouts_the_grace_period_and_cancels_the_rest() -> None:
    started: list[int] = []

    async def play(rollout: PlannedRollout) -> None:
        started.append(rollout.key.task)
        if rollout.key.task == 1:
            await until(lambda: is_stopped)
            return
        await forever(rollout)

    is_stopped = False

    async def stop(pool: WorkerPool) -> None:
        nonlocal is_stopped
        await until(lambda: len(started) == 4)
        pool.stop(0.1)
        is_stopped = True

    run = Run(20, [2, 2])
    run.play(playing(play), stop)
    assert {one.key.task for one in run.outcomes} == set(range(4)), "nothing new was started"
    assert set(run.failures) == {0, 2, 3}
    assert {one.kind for one in run.failures.values()} == {"cancelled"}
    assert not any(link.was_killed for link in run.links)


def test_run_stopped_at_once_kills_its_workers_and_records_what_they_had() -> None:
    async def stop(pool: WorkerPool) -> None:
        await until(lambda: pool.in_flight() == 4)
        pool.stop(0.0)

    run = Run(20, [2, 2])
    run.play(playing(forever), stop)
    assert set(run.failures) == set(range(4)) and len(run.outcomes) == 4
    assert all(link.was_killed for link in run.links)


def test_rollouts_of_a_dead_worker_that_wait_for_another_are_recorded_when_the_run_stops() -> None:
    lives = iter([True])

    async def run_worker(end: WorkerEnd) -> None:
        if next(lives, False):
            await dying(lambda numbers: True)(end)
        await asyncio.Event().wait()

    run = Run(20, [2])

    async def stop(pool: WorkerPool) -> None:
        await until(lambda: len(run.links) == 2)
        pool.stop(0.0)

    run.play(run_worker, stop)
    assert set(run.failures) == {0, 1} and len(run.outcomes) == 2
    assert {one.kind for one in run.failures.values()} == {"cancelled"}


def test_worker_that_ignores_the_stop_is_killed_after_the_grace_period() -> None:
    async def run_worker(end: WorkerEnd) -> None:
        end.send(Ready())
        await asyncio.Event().wait()

    async def stop(pool: WorkerPool) -> None:
        await until(lambda: pool.in_flight() == 2)
        pool.stop(0.05)

    run = Run(5, [2])
    run.play(run_worker, stop)
    assert set(run.failures) == {0, 1} and run.links[0].was_killed


def test_worker_whose_servers_cannot_start_ends_the_run_with_its_message() -> None:
    async def run_worker(end: WorkerEnd) -> None:
        end.send(StartFailed("ComponentError: no such module"))

    run = Run(5, [2, 2])
    with pytest.raises(WorkerError, match="ComponentError: no such module"):
        run.play(run_worker)
    assert not run.outcomes


def test_worker_that_is_not_ready_in_time_ends_the_run() -> None:
    async def run_worker(end: WorkerEnd) -> None:
        await asyncio.Event().wait()

    run = Run(5, [2], replace(PATIENT, startup_s=0.05, exit_s=0.05))
    with pytest.raises(WorkerError, match=r"the servers of worker 0 did not start within 0\.05 s"):
        run.play(run_worker)
    assert run.links[0].was_killed


def test_worker_that_cannot_be_started_ends_the_run() -> None:
    class NoMemory(Run):
        async def _start(self, worker: RunWorker) -> MemoryLink:
            raise OSError(12, "Cannot allocate memory")

    with pytest.raises(WorkerError, match="cannot start worker 0: Cannot allocate memory"):
        NoMemory(5, [2]).play(playing(at_once))


def test_silent_worker_is_killed_and_its_rollouts_are_played_again(caplog: pytest.LogCaptureFixture) -> None:
    lives = iter([True])

    async def run_worker(end: WorkerEnd) -> None:
        if next(lives, False):
            end.send(Ready())
            await asyncio.Event().wait()
        await playing(at_once)(end)

    run = Run(5, [2], replace(PATIENT, silence_s=0.2, exit_s=0.2))
    run.play(run_worker)
    run.check_each_once()
    assert not run.failures and run.links[0].was_killed and len(run.links) == 2
    assert "worker 0 has sent nothing for 0.2 s; killing it" in caplog.text


def test_worker_that_does_not_exit_in_time_is_killed() -> None:
    async def run_worker(end: WorkerEnd) -> None:
        await playing(at_once)(end)
        await asyncio.Event().wait()

    run = Run(5, [2], replace(PATIENT, ending_s=0.05))
    run.play(run_worker)
    run.check_each_once()
    assert run.links[0].was_killed


def test_worker_that_survives_its_kill_does_not_fail_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Undying(MemoryLink):
        async def close(self) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    class UndyingWorkers(Run):
        async def _start(self, worker: RunWorker) -> MemoryLink:
            return Undying(worker)

    run = UndyingWorkers(5, [2], replace(PATIENT, exit_s=0.05))
    run.play(playing(at_once))
    run.check_each_once()
    assert not run.failures
    assert "worker 0 is still running 0.05 s after it was killed" in caplog.text


def test_run_does_not_wait_for_a_worker_that_is_still_starting() -> None:
    lives = iter([True])

    async def run_worker(end: WorkerEnd) -> None:
        if next(lives, False):
            await asyncio.Event().wait()
        await playing(at_once)(end)

    run = Run(5, [2, 2])
    run.play(run_worker)
    run.check_each_once()
    assert run.links[0].was_killed and not run.links[1].was_killed


def test_state_is_that_of_all_workers() -> None:
    async def stop(pool: WorkerPool) -> None:
        await until(lambda: len(pool.state().oldest) == 4)
        assert pool.state().in_flight == 4
        pool.stop(0.0)

    Run(20, [2, 2]).play(playing(forever), stop)


def test_state_keeps_the_retries_of_a_dead_worker_and_nothing_else() -> None:
    lives = iter([True])
    waiting: dict[str, object] = {"rollout": "0:0", "agent": "agent", "seconds": 1.0, "waits_for": "a tool"}

    async def run_worker(end: WorkerEnd) -> None:
        if next(lives, False):
            end.send(Ready())
            await end.receive()
            end.send(Report(ExecutorState(1, 7, [waiting], {"http://endpoint": 3})))
            raise WorkerCrash
        await asyncio.Event().wait()

    run = Run(20, [2])

    async def stop(pool: WorkerPool) -> None:
        await until(lambda: len(run.links) == 2)
        assert pool.state() == ExecutorState(retries=7)
        pool.stop(0.0)

    run.play(run_worker, stop)
