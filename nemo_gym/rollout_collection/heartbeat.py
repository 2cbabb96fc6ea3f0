"""What a run does every second: sync and check its files, show its progress, write its status."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from nemo_gym.endpoint_health import merged
from nemo_gym.errors import JournalError
from nemo_gym.rollout_collection.display.progress import Progress, Snapshot
from nemo_gym.rollout_collection.display.screen import Display
from nemo_gym.rollout_collection.endpoint_watch import Ending, EndpointWatch
from nemo_gym.rollout_collection.execution.executor import Executor, ExecutorState
from nemo_gym.rollout_collection.recording.recorder import Recorder
from nemo_gym.rollout_collection.recording.status_file import StatusFile
from nemo_gym.rollout_collection.recording.waiting import ServedReports

logger = logging.getLogger(__name__)

_LAST_BEAT_S = 30.0
"""Timeout of the last sync. A disk that works takes less."""


@dataclass(frozen=True)
class Heartbeat:
    """Keeps the files, the display and the status of a run up to date."""

    executor: Executor
    recorder: Recorder
    progress: Progress
    display: Display
    status: StatusFile
    served: ServedReports
    watch: EndpointWatch
    end_run: Callable[[Ending], None]
    is_served: bool
    """Whether the servers run in other processes, which know more about what rollouts wait for."""
    is_adaptive: bool = False
    """Whether concurrency adapts, so that the limits are shown."""
    period_s: float = 1.0

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        # Two loops: a server that is slow to report its limits must not delay the sync.
        async with (
            repeated(self._beat, self.period_s),
            repeated(self._ask_servers, self.period_s),
        ):
            yield

    async def _ask_servers(self) -> None:
        if self.served.urls:
            await self.served.ask()
            self.executor.take_waits(self.served.waits)

    def snapshot(self) -> Snapshot:
        return self.progress.snapshot(self._state())

    async def _beat(self) -> None:
        try:
            await asyncio.to_thread(self.recorder.sync)
        except JournalError as error:
            self.recorder.fail(error)
        self.recorder.check_files()
        state = self._state()
        snapshot = self.progress.snapshot(state)
        self.display.show(snapshot)
        self.status.write(
            done=snapshot.done,
            total=snapshot.total,
            failed=snapshot.failed,
            per_minute=round(snapshot.per_minute, 1),
            eta_s=snapshot.eta_s,
            in_flight=state.in_flight,
            limits=state.limits,
            served=self.is_served,
            waiting=snapshot.waiting,
            oldest=state.oldest,
        )
        ending = await self.watch.look(state, self.recorder.ledger.succeeded_now)
        if ending is not None:
            self.end_run(ending)

    def _state(self) -> ExecutorState:
        """The state of the executor, with what other processes report."""
        state = self.executor.state()
        endpoints = merged([*state.endpoints, *self.served.endpoints])
        limits = state.limits | self.served.limits if self.is_adaptive else {}
        return replace(state, limits=limits, endpoints=endpoints)


@asynccontextmanager
async def repeated(action: Callable[[], Awaitable[None]], period_s: float) -> AsyncIterator[None]:
    """Call the action periodically while the body runs."""
    is_over = asyncio.Event()

    async def run() -> None:
        while not is_over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await is_over.wait()
                    return
            try:
                await action()
            except Exception:  # the boundary: the action only informs, and is called again
                logger.exception("cannot update the progress, status or limits of the run; trying again")

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        is_over.set()  # not cancelled: a sync must end before the file is closed
        await asyncio.wait({running}, timeout=_LAST_BEAT_S)
