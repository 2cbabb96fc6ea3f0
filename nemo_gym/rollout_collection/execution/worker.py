"""A worker: hosts the servers, plays the rollouts that its pool sends, and sends back the outcomes.

It knows nothing about processes or sockets: it obeys the messages of `link.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from nemo_gym.activity import EndpointLimits
from nemo_gym.client import ServerClient
from nemo_gym.config import config_from_bytes
from nemo_gym.endpoint_health import RunEndpoints
from nemo_gym.errors import NeMoGymError
from nemo_gym.failures import FailureKind
from nemo_gym.http.transport_choice import apply_client_settings
from nemo_gym.launch import host_embedded
from nemo_gym.launch.limits import collect_garbage_less
from nemo_gym.rollout_collection.execution.attempt import Attempt
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy
from nemo_gym.rollout_collection.execution.executor import RecordOutcome
from nemo_gym.rollout_collection.execution.link import (
    DriverLink,
    Finished,
    Play,
    Ready,
    Report,
    StartFailed,
    Stop,
)
from nemo_gym.rollout_collection.outcome import Failure, Outcome
from nemo_gym.rollout_collection.recording.waiting import ServedReports
from nemo_gym.servers.watchdog import BlockedLoop, watching


@dataclass(frozen=True)
class WorkerPolicy:
    """How often a worker sends, and how long it takes to end."""

    flush_s: float = 0.005
    """Outcomes are collected for this long and sent together."""
    report_s: float = 1.0
    """Time between two reports."""
    exit_s: float = 2.0
    """Time for threads and tasks of environments that still run when the worker is done."""
    orphan_s: float = 5.0
    """Time to end in order when the driver is gone; then the worker kills itself and all that it started."""


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to start. Contains secrets: sent over a private link, never written to a file."""

    config: bytes
    """The output of `dump_config`."""
    is_embedded: bool
    """Whether the worker hosts the servers; if not, it calls those that run elsewhere."""
    elsewhere: frozenset[str]
    """Names of servers that all workers share; no worker hosts them."""
    rollout_policy: RolloutPolicy
    call_timeout_s: float
    adaptive_ceiling: int
    """Maximum number of concurrent calls to one endpoint; 0 if concurrency is not adaptive."""
    run: str
    """Identifies the run to servers in other processes."""
    process_urls: tuple[str, ...] = ()
    """The addresses of these servers."""
    policy: WorkerPolicy = WorkerPolicy()


EndWorker = Callable[[Failure], None]
"""Ends this worker at once, and reports the failure of the rollout that is to blame. Called in a thread."""


async def serve(driver: DriverLink, setup: WorkerSetup, end_worker: EndWorker) -> None:
    """One worker from its start to its end; raises LinkClosedError when the driver is gone."""
    try:
        async with _servers(setup) as client:
            limits = EndpointLimits(setup.adaptive_ceiling) if setup.adaptive_ceiling else None
            secrets = config_from_bytes(setup.config).secrets
            timeout_s = setup.rollout_policy.rollout_timeout_s
            backoff_s, endpoints = setup.rollout_policy.retry.base_delay_s, RunEndpoints(setup.run)
            attempt = Attempt(client, setup.call_timeout_s, timeout_s, limits, secrets, endpoints, backoff_s)
            collect_garbage_less()
            dispatch = partial(Dispatcher, attempt, attempt.activity, setup.rollout_policy)
            reports = ServedReports(setup.process_urls, setup.run, access_token=client.access_token)
            worker = Worker(driver, setup.policy, reports)

            def check_deadline(blocked: BlockedLoop) -> None:
                if failure := worker.overdue(blocked):
                    end_worker(failure)

            with watching(check_deadline):
                await worker.work(dispatch, limits, endpoints)
    except NeMoGymError as error:
        driver.send(StartFailed(f"{type(error).__name__}: {error}"))


class Worker:
    """Plays what the pool sends."""

    def __init__(self, driver: DriverLink, policy: WorkerPolicy, served: ServedReports | None = None) -> None:
        self._driver = driver
        self._policy = policy
        self._dispatcher: Dispatcher | None = None
        self._served = served
        """What servers in other processes report."""
        self._outcomes: list[Outcome] = []
        self._is_broken = False
        """Whether outcomes are no longer sent: to the pool, this worker dies with all that it plays."""
        self._flush_at: asyncio.TimerHandle | None = None

    async def work(
        self,
        new_dispatcher: Callable[[RecordOutcome], Dispatcher],
        limits: EndpointLimits | None = None,
        endpoints: RunEndpoints | None = None,
    ) -> None:
        self._dispatcher = dispatcher = new_dispatcher(self._finished)
        self._driver.send(Ready())
        reporting = [asyncio.create_task(self._report(dispatcher, limits, endpoints))]
        if self._served is not None and self._served.urls:
            reporting.append(asyncio.create_task(self._take_waits(dispatcher, self._served)))
        try:
            await self._obey(dispatcher)
        except asyncio.CancelledError:  # by the code of an environment: other rollouts are not to blame
            self._is_broken = True
            raise
        finally:
            for task in reporting:
                task.cancel()
            dispatcher.abandon_all()
            self._flush()

    async def _obey(self, dispatcher: Dispatcher) -> None:
        stopping: asyncio.Task[None] | None = None
        while stopping is None or not stopping.done():
            receiving = asyncio.ensure_future(self._driver.receive())
            await asyncio.wait({receiving, *filter(None, [stopping])}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                return
            message = receiving.result()
            if isinstance(message, Play):
                for rollout in message.rollouts:
                    dispatcher.submit(rollout)
            elif isinstance(message, Stop) and message.grace_s > 0:
                stopping = asyncio.create_task(dispatcher.drain(message.grace_s))
            else:
                return

    def overdue(self, blocked: BlockedLoop) -> Failure | None:
        """The failure of a rollout that blocks the event loop beyond its deadline. Any thread may call it."""
        in_flight = list(self._dispatcher.in_flight) if self._dispatcher is not None else []
        entry = next((one for one in in_flight if one.running is blocked.task), None)
        if entry is None or not entry.activity.is_over:
            return None
        rollout, kind = entry.rollout, FailureKind.TIMEOUT
        message = f"not finished at its deadline: {blocked}"
        return Failure(
            rollout.key, rollout.agent_ref, kind, "EventLoopBlocked", message, attempts=entry.attempts
        )

    def _finished(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(self._policy.flush_s, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        if self._outcomes and not self._is_broken:
            self._driver.send(Finished(self._outcomes))
            self._outcomes = []

    async def _report(
        self, dispatcher: Dispatcher, limits: EndpointLimits | None, endpoints: RunEndpoints | None
    ) -> None:
        while True:
            await asyncio.sleep(self._policy.report_s)
            self._driver.send(Report(dispatcher.state(limits, endpoints)))

    async def _take_waits(self, dispatcher: Dispatcher, served: ServedReports) -> None:
        while True:
            await asyncio.sleep(self._policy.report_s)
            await served.ask()
            dispatcher.take_waits(served.waits)


@asynccontextmanager
async def _servers(setup: WorkerSetup) -> AsyncIterator[ServerClient]:
    config = config_from_bytes(setup.config)
    if setup.is_embedded:
        async with host_embedded(config, elsewhere=setup.elsewhere) as client:
            yield client
    else:
        apply_client_settings(config.data)
        yield ServerClient(config.head_server, config.values)
