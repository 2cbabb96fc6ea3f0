"""A worker link within one event loop: the worker is an asyncio task, messages go through two queues."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nemo_gym.rollout_collection.execution.link import FromWorker, LinkClosedError, ToWorker
from nemo_gym.rollout_collection.outcome import Failure

T = TypeVar("T")


class _Pipe(Generic[T]):
    def __init__(self) -> None:
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()

    def send(self, message: T) -> None:
        self._queue.put_nowait(message)

    async def receive(self) -> T:
        message = await self._queue.get()
        if message is None:
            self.close()  # later calls raise as well
            raise LinkClosedError
        return message

    def close(self) -> None:
        self._queue.put_nowait(None)


class WorkerEnd:
    """What the worker has in its hands: a DriverLink."""

    def __init__(self, inbox: _Pipe[ToWorker], outbox: _Pipe[FromWorker]) -> None:
        self.send = outbox.send
        self.receive = inbox.receive


class WorkerCrash(Exception):
    """Raised by a worker that dies, perhaps with the failure of the rollout that is to blame."""

    def __init__(self, failure: Failure | None = None) -> None:
        self.failure = failure


RunWorker = Callable[[WorkerEnd], Awaitable[None]]


class MemoryLink:
    """The pool's end: a WorkerLink."""

    def __init__(self, run_worker: RunWorker) -> None:
        self._to_worker: _Pipe[ToWorker] = _Pipe()
        self._from_worker: _Pipe[FromWorker] = _Pipe()
        self._worker = asyncio.ensure_future(self._live(run_worker))
        self.was_killed = False
        self.failure: Failure | None = None

    async def _live(self, run_worker: RunWorker) -> str:
        try:
            await run_worker(WorkerEnd(self._to_worker, self._from_worker))
        except (WorkerCrash, LinkClosedError) as error:
            self.failure = getattr(error, "failure", None)
            return f"exit code 1, {type(error).__name__}"
        except asyncio.CancelledError:
            return "exit code -9"
        finally:
            self._from_worker.close()
        return "exit code 0"

    def send(self, message: ToWorker) -> None:
        self._to_worker.send(message)

    async def receive(self) -> FromWorker:
        return await self._from_worker.receive()

    def kill(self) -> None:
        self.was_killed = self.was_killed or not self._worker.done()
        self._worker.cancel()

    def blamed(self) -> Failure | None:
        return self.failure

    async def close(self) -> str:
        self._to_worker.close()
        await asyncio.wait({self._worker})
        return self._worker.result() if not self._worker.cancelled() else "exit code -9"
