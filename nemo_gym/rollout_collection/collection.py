"""A collection: plan → resume → execute → record → measure.

The journal is the truth: a rollout is on disk before anything counts it as done.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from nemo_gym.client import ServerClient
from nemo_gym.errors import InterferenceError, JournalError, NeMoGymError
from nemo_gym.records import Key
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.display.description import described
from nemo_gym.rollout_collection.display.progress import Progress, throughput
from nemo_gym.rollout_collection.display.screen import Display
from nemo_gym.rollout_collection.endpoint_watch import Ending, EndpointWatch
from nemo_gym.rollout_collection.execution.executor import Executor
from nemo_gym.rollout_collection.execution.executor_table import OpenedExecutor, executor_named
from nemo_gym.rollout_collection.execution.run_limits import RunLimits
from nemo_gym.rollout_collection.heartbeat import Heartbeat
from nemo_gym.rollout_collection.outcome import Outcome
from nemo_gym.rollout_collection.planning.parameters import misspelt_parameters
from nemo_gym.rollout_collection.planning.prepare import prepare, prepare_folder
from nemo_gym.rollout_collection.planning.ready_run import Prepared
from nemo_gym.rollout_collection.planning.remaining import RemainingWork
from nemo_gym.rollout_collection.recording.ledger import FailureBudget, Ledger
from nemo_gym.rollout_collection.recording.manifest import OUTPUT_STATE, Manifest, output_state
from nemo_gym.rollout_collection.recording.output_lock import OutputLock, exclusive
from nemo_gym.rollout_collection.recording.recorder import Recorder
from nemo_gym.rollout_collection.recording.rollouts import Rollouts
from nemo_gym.rollout_collection.recording.status_file import StatusFile
from nemo_gym.rollout_collection.recording.waiting import ServedReports
from nemo_gym.rollout_collection.results.collected import Collected
from nemo_gym.rollout_collection.results.run_metrics import (
    agent_rollouts,
    metrics_warning,
    track_collected,
    write_run_metrics,
)
from nemo_gym.rollout_collection.results.tracking import tracker_config
from nemo_gym.rollout_collection.run_servers import Servers
from nemo_gym.terminal import counted, one_line
from nemo_gym.trackers import warn_early

logger = logging.getLogger(__name__)


class Collection:
    """One run into one output."""

    def __init__(
        self,
        config: RolloutCollectionConfig,
        servers: Servers,
        display: Display,
        policy: CollectionPolicy,
    ) -> None:
        self._config = servers.with_only_agent(config)
        self._servers = servers
        self._display = display
        self._policy = policy
        self._output = Path(config.output_jsonl_fpath)
        self._place = self._output.absolute()
        """The same, whatever an environment in this process makes the working directory."""
        self._executor_kind = executor_named(config.executor)
        self._executor: Executor | None = None
        self._opening: asyncio.Timeout | None = None
        self._stopped_by: str | None = None
        self._ending: Ending | None = None
        self._limits = RunLimits(config.max_run_time_s, config.max_total_tokens)

    @property
    def stop_grace_s(self) -> float:
        return self._config.stop_grace_s

    @property
    def is_stopping(self) -> bool:
        return self._stopped_by is not None

    def stop(self, reason: str) -> None:
        """End early: running rollouts have some seconds to finish. A second call ends the run at once."""
        grace_s = self._config.stop_grace_s if self._stopped_by is None else 0.0
        self._stopped_by = self._stopped_by or reason
        if self._executor is not None:
            self._executor.stop(grace_s)
        elif self._opening is not None:
            opening, self._opening = self._opening, None
            opening.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> Collected:
        self._executor_kind.check(self._servers)
        self._servers.check_settings()  # before anything is written
        prepare_folder(self._config, self._policy.roots)
        with _same_folder(), exclusive(self._output) as lock, StatusFile(self._output) as status:
            prepared = self._prepare(lock)
            planned_by_agent = prepared.planned_by_agent()
            progress = _new_progress(prepared)
            async with AsyncExitStack() as opened:
                with self._recorder(prepared, progress) as recorder:
                    client = await self._execute(prepared, recorder, progress, status, opened)
                    taken = throughput(progress)
                    recorder.sync()
                    self._check_files(prepared, recorder)
                    collected = self._collected(prepared, recorder)
                    collected.throughput = taken
                    if not self._config.disable_aggregation and len(collected.rollouts):
                        await self._measure(collected, prepared, planned_by_agent, client, opened)
                    self._check_files(prepared, recorder)
                return collected

    def _prepare(self, lock: OutputLock) -> Prepared:
        """Plan, or resume."""
        config, note = self._config, self._display.note
        trackers = tracker_config(config, self._servers.values)
        for line in [
            *described(config, self._executor_kind, self._servers),
            *misspelt_parameters(config),
            *warn_early(trackers),
        ]:
            note(line)
        prepared = prepare(config, self._servers, self._policy, note, lock)
        if not prepared.is_resumed:
            note(f"{counted(prepared.work.to_run, 'rollout')} to run")
        return prepared

    def _recorder(self, prepared: Prepared, progress: Progress) -> Recorder:
        work = prepared.work
        ledger = _new_ledger(work)
        prepared.manifest.save(state="running", ledger=ledger.as_data())
        budget = FailureBudget(self._config.max_failure_rate, work.to_run)

        def recorded(outcome: Outcome) -> None:
            progress.take(outcome)
            self._limits.take(outcome)

        return Recorder(self._output, prepared.found, ledger, budget, recorded)

    async def _execute(
        self,
        prepared: Prepared,
        recorder: Recorder,
        progress: Progress,
        status: StatusFile,
        opened: AsyncExitStack,
    ) -> ServerClient | None:
        """Play the remaining work; returns the client of the servers if they are open in this process."""
        if not prepared.work.to_run:
            return None
        ready = await self._open_executor(prepared.work.to_run, opened)
        if ready is None:
            return None
        self._servers, self._executor = ready.servers, ready.executor
        executor = ready.executor
        recorder.in_flight = executor.in_flight
        recorder.end_run = lambda: executor.stop(0.0)
        executor.on_deaths = partial(_note_deaths, prepared.manifest, recorder)

        def end_run(ending: Ending) -> None:
            self._ending = self._ending or ending
            recorder.ignores_failures = True
            executor.stop(0.0)

        heartbeat = Heartbeat(
            executor,
            recorder,
            progress,
            self._display,
            status,
            ServedReports(self._servers.process_urls, ready.run, access_token=self._servers.access_token),
            EndpointWatch(self._config.outage_timeout_s, self._display.note, self._servers.head_check),
            end_run,
            is_served=self._servers.to_host is None,
            is_adaptive=self._config.adaptive_concurrency,
            period_s=self._policy.heartbeat_s,
        )
        try:
            async with heartbeat.beating():
                if self._stopped_by is None:
                    rollouts = self._limits.within(prepared.work.rollouts())
                    await executor.run(rollouts, recorder.record)
        finally:
            self._display.finish(heartbeat.snapshot())
            with suppress(JournalError):  # the error that ended the run is reported separately
                prepared.manifest.save(state="stopped", ledger=recorder.ledger.as_data())
        return ready.client

    async def _open_executor(self, to_run: int, opened: AsyncExitStack) -> OpenedExecutor | None:
        """Open the executor and its servers; None if the run was stopped meanwhile."""
        opening = self._executor_kind.open(self._config, self._servers, to_run)
        try:
            async with asyncio.timeout(None) as self._opening:
                return await opened.enter_async_context(opening)
        except TimeoutError:
            if self._stopped_by is None:
                raise
            return None
        finally:
            self._opening = None

    def _check_files(self, prepared: Prepared, recorder: Recorder) -> None:
        """Raise an error if outcomes could not be recorded, or are not in the files any more."""
        recorder.check_files()
        error, ledger = recorder.error, recorder.ledger
        if error is None:
            return
        with suppress(JournalError):  # the error that ended the run comes first
            prepared.manifest.save(state="stopped", ledger=ledger.as_data())
        if isinstance(error, InterferenceError):
            raise error
        are = "is" if ledger.succeeded == 1 else "are"
        raise JournalError(
            f"{error}. The {counted(ledger.succeeded, 'rollout')} recorded so far {are} safe; "
            "continue with +resume_from_cache=true"
        ) from error

    def _collected(self, prepared: Prepared, recorder: Recorder) -> Collected:
        """The result of the run."""
        ledger = recorder.ledger
        if self._ending is not None and self._ending.error is not None:
            raise self._ending.error
        stopped_by = self._stopped_by or (self._ending.reason if self._ending is not None else None)
        if recorder.is_over_budget:
            stopped_by = f"more failures than max_failure_rate={self._config.max_failure_rate:g} allows"
        state = "complete" if ledger.is_complete else "incomplete"
        entries = {OUTPUT_STATE: output_state(self._place)}
        prepared.manifest.save(state=state, ledger=ledger.as_data(), **entries)
        rollouts = Rollouts(self._output, prepared.found.index.sorted_offsets(), self._place)
        return Collected(
            rollouts, prepared.found.index.keys, ledger, self._output, stopped_by, self._limits.reached
        )

    async def _measure(
        self,
        collected: Collected,
        prepared: Prepared,
        planned_by_agent: dict[str, int],
        client: ServerClient | None,
        opened: AsyncExitStack,
    ) -> None:
        """Write the metrics and send them to the trackers; a stopped run is not tracked."""
        try:
            if client is None and collected.stopped_by is None:
                client = await self._open_servers(opened)
            agents = agent_rollouts(collected.rollouts, prepared.found.columns, planned_by_agent)
            await write_run_metrics(collected, agents, prepared.manifest, client)
            if collected.stopped_by is None:
                trackers = tracker_config(self._config, self._servers.values)
                servers = prepared.manifest.data.get("servers")
                await track_collected(collected, self._config, trackers, servers)
        except Exception as error:  # the boundary of the metrics: the rollouts are safe without them
            collected.warnings.append(metrics_warning(collected, error))

    async def _open_servers(self, opened: AsyncExitStack) -> ServerClient | None:
        try:
            return await opened.enter_async_context(self._servers.open())
        except NeMoGymError as error:
            logger.warning(
                "cannot open the servers, so the environments' own metrics are not computed: %s",
                one_line(str(error)),
            )
            return None


@contextmanager
def _same_folder() -> Iterator[None]:
    """Return to the working directory at the end: environments in this process may change it."""
    folder = os.getcwd()
    try:
        yield
    finally:
        with suppress(OSError):  # it was deleted meanwhile
            os.chdir(folder)


def _new_progress(prepared: Prepared) -> Progress:
    work = prepared.work
    return Progress(
        work.planned,
        Counter(work.to_run_by_agent),
        prepared.found.columns,
        earlier=work.planned - work.to_run,
        failed=work.num_skipped,
    )


def _note_deaths(manifest: Manifest, recorder: Recorder, deaths: Mapping[Key, int]) -> None:
    """Save the deaths of workers, so that a resumed run does not begin with the rollouts that cause them."""
    try:
        manifest.note_worker_deaths(deaths)
    except JournalError as error:
        recorder.fail(error)


def _new_ledger(work: RemainingWork) -> Ledger:
    return Ledger(planned=work.planned, resumed=work.num_done, skipped=Counter(work.skipped_by_kind))
