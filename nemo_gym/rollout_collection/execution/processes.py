"""The executor of worker processes: each hosts the servers, the driver hands out tasks and takes back lines.

A worker that dies owes its rollouts again and nothing else. The limit on rollouts in flight is that of the
whole run: each worker has its share.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from nemo_gym.errors import WorkerError
from nemo_gym.failures import FailureKind
from nemo_gym.records import Key
from nemo_gym.rollout_collection.execution.dispatch import TEARDOWN_S
from nemo_gym.rollout_collection.execution.executors import SHOWN_OLDEST, ExecutorState, Settle
from nemo_gym.rollout_collection.execution.worker import WorkerSetup, frame, read_frame
from nemo_gym.rollout_collection.outcome import Failure, Task

logger = logging.getLogger(__name__)

STARTUP_S = 300.0
"""Until a worker's servers are ready. Generous: some load models first."""
SILENCE_S = 30.0
"""How long a worker may say nothing, on top of a rollout's time: it reports every second unless it hangs."""
_DEATHS_IN_A_ROW = 10
"""Deaths of workers, without an outcome between them, that end the run: no worker can live."""
_DEATHS_OF_A_TASK = 3
"""Deaths of workers that played a task, the last of them nothing else, after which it is a failure."""
ENDING_S = 30.0
"""How long a worker may take to shut its servers down when nothing is left to do."""
_HINT = "What was recorded is safe: go on with +resume_from_cache=true"


@dataclass
class _Worker:
    """A worker process as the driver sees it."""

    number: int
    share: int
    """Most rollouts it has at once."""
    process: asyncio.subprocess.Process | None = None
    writer: asyncio.StreamWriter | None = None
    in_flight: dict[Key, Task] = field(default_factory=dict)
    state: ExecutorState = field(default_factory=ExecutorState)
    is_ready: bool = False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def send(self, kind: str, content: object) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(frame((kind, content)))

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


class ProcessExecutor:
    """Plays tasks in worker processes."""

    def __init__(self, setup: WorkerSetup, num_workers: int, parallel: int) -> None:
        count = min(num_workers, parallel)
        shares = [parallel // count + (number < parallel % count) for number in range(count)]
        if setup.adaptive_ceiling:
            setup = replace(setup, adaptive_ceiling=shares[0])
        self._setup = setup
        self._workers = [_Worker(number, share) for number, share in enumerate(shares)]
        self._owed: deque[Task] = deque()
        """Tasks whose worker died."""
        self._deaths: dict[Key, int] = {}
        self._deaths_in_a_row = 0
        """Without an outcome between them."""
        self._grace_s: float | None = None
        self._tasks: Iterator[Task] = iter(())
        self._settle: Settle = lambda outcome: None
        self._all_taken = False

    async def run(self, tasks: Iterator[Task], settle: Settle) -> None:
        self._tasks, self._settle = tasks, settle
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers:
                    group.create_task(self._look_after(worker))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            for worker in self._workers:
                worker.kill()
                self._settle_cancelled(worker)

    def stop(self, grace_s: float) -> None:
        self._grace_s = grace_s
        for worker in self._workers:
            if grace_s and worker.is_ready:
                worker.send("stop", grace_s)
                asyncio.get_running_loop().call_later(grace_s + 2 * TEARDOWN_S, self._end, worker)
            else:
                self._end(worker)

    @staticmethod
    def _end(worker: _Worker) -> None:
        if worker.is_running:
            worker.kill()

    def in_flight(self) -> int:
        return sum(len(worker.in_flight) for worker in self._workers)

    def state(self) -> ExecutorState:
        states = [worker.state for worker in self._workers]
        waiting = sorted((one for state in states for one in state.oldest), key=_age, reverse=True)
        limits: dict[str, int] = {}
        for state in states:
            for origin, limit in state.limits.items():
                limits[origin] = limits.get(origin, 0) + limit
        return ExecutorState(
            self.in_flight(),
            sum(state.retries for state in states),
            waiting[:SHOWN_OLDEST],
            limits,
        )

    async def _look_after(self, worker: _Worker) -> None:
        """One worker from its start to its end, and again if it dies."""
        while not self._is_over():
            await self._run_once(worker)
            if self._grace_s is not None:
                return
            if worker.in_flight or not self._is_over():
                self._take_back(worker)

    def _is_over(self) -> bool:
        """Whether there is nothing left for any worker to do."""
        if self._grace_s is not None:
            return True
        # While others have rollouts they may die, and owe them to somebody.
        return self._all_taken and not self._owed and not any(one.in_flight for one in self._workers)

    async def _run_once(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                worker.process = await _spawn(theirs)
            except OSError as error:
                ours.close()
                reason = error.strerror or str(error)
                raise WorkerError(f"worker {worker.number} cannot be started: {reason}; {_HINT}") from error
        reader, worker.writer = await asyncio.open_connection(sock=ours)
        worker.writer.write(frame(self._setup))
        if self._grace_s is not None:  # stopped while it was being started
            worker.kill()
        try:
            await self._converse(worker, reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it died, or it ended as it was told to
        except TimeoutError:
            logger.warning("worker %d has been silent for too long; it is ended", worker.number)
            worker.kill()
        finally:
            worker.is_ready = False
            worker.writer.close()
            await self._reap(worker)

    async def _converse(self, worker: _Worker, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(STARTUP_S):
                kind, content = await read_frame(reader)
        except TimeoutError:
            raise WorkerError(f"worker {worker.number} is not ready after {STARTUP_S:g} s; {_HINT}") from None
        if kind == "error":
            if self._is_over():  # the others have done it all meanwhile
                return
            raise WorkerError(str(content))
        worker.is_ready = True
        self._feed(worker)
        silence_s = self._setup.policy.rollout_timeout_s + SILENCE_S
        while True:
            async with asyncio.timeout(silence_s):
                kind, content = await read_frame(reader)
            if kind == "state":
                worker.state = content
            elif kind == "outcomes":
                self._deaths_in_a_row = 0
                for outcome in content:
                    if worker.in_flight.pop(outcome.key, None) is not None:
                        self._settle(outcome)
                self._feed(worker)

    def _feed(self, worker: _Worker) -> None:
        """Give a worker as much as it may have; tell all to end when nothing is left anywhere."""
        tasks: list[Task] = []
        while self._grace_s is None and len(worker.in_flight) < worker.share:
            if self._owed and self._is_suspect(self._owed[0]) and worker.in_flight:
                break  # it gets a worker to itself, so that it takes no others down with it
            task = self._owed.popleft() if self._owed else next(self._tasks, None)
            if task is None:
                self._all_taken = True
                break
            worker.in_flight[task.key] = task
            tasks.append(task)
            if self._is_suspect(task):
                break
        if tasks:
            worker.send("tasks", tasks)
        elif self._all_taken and not any(other.in_flight for other in self._workers):
            for other in self._workers:
                if other.is_ready:
                    other.send("end", None)
                    asyncio.get_running_loop().call_later(ENDING_S, self._end, other)
                else:
                    self._end(other)

    def _is_suspect(self, task: Task) -> bool:
        """Whether workers have died of it, or of one that they played beside it."""
        return self._deaths.get(task.key, 0) >= 2

    def _take_back(self, worker: _Worker) -> None:
        """A worker died: what it had is owed again, by whoever is free first."""
        code = worker.process.returncode if worker.process is not None else None
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > _DEATHS_IN_A_ROW:
            raise WorkerError(
                f"workers died {self._deaths_in_a_row} times in a row without finishing a rollout (the last, "
                f"worker {worker.number}, with exit code {code}); their output above says why. {_HINT}"
            )
        owed, worker.in_flight = worker.in_flight, {}
        logger.warning(
            "worker %d died (exit code %s); its %d rollouts run again", worker.number, code, len(owed)
        )
        for key, task in owed.items():
            self._deaths[key] = deaths = self._deaths.get(key, 0) + 1
            if deaths >= min(self._setup.policy.retry.attempts, _DEATHS_OF_A_TASK):
                message = f"{deaths} worker processes died while they played this rollout"
                self._settle(
                    Failure(
                        key,
                        task.agent_ref,
                        FailureKind.INFRASTRUCTURE,
                        "WorkerDied",
                        message,
                        attempts=deaths,
                    )
                )
            else:
                self._owed.append(task)
        for other in self._workers:
            if other.is_ready:
                self._feed(other)

    async def _reap(self, worker: _Worker) -> None:
        assert worker.process is not None
        patience_s = TEARDOWN_S + 5 if self._grace_s != 0 else 0.5
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await worker.process.wait()
        worker.kill()
        async with asyncio.timeout(10):
            await worker.process.wait()

    def _settle_cancelled(self, worker: _Worker) -> None:
        """What a worker had when the run was stopped."""
        for key, task in worker.in_flight.items():
            message = "the run was stopped"
            self._settle(Failure(key, task.agent_ref, FailureKind.CANCELLED, "CancelledError", message))
        worker.in_flight = {}


async def _spawn(channel: socket.socket) -> asyncio.subprocess.Process:
    start = "from nemo_gym.rollout_collection.execution.worker import main; main()"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", start, str(channel.fileno())),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
        pass_fds=(channel.fileno(),),
        start_new_session=True,  # Ctrl-C in the terminal reaches the driver alone
    )


def _age(waiting: dict[str, object]) -> float:
    seconds = waiting["seconds"]
    return seconds if isinstance(seconds, float) else 0.0


def _has_descriptor(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]  # a notebook's stream has none
    except (AttributeError, OSError, ValueError):
        return False
    return True
