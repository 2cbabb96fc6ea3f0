"""A collection from its plan to its metrics: plan, resume, dispatch, journal.

The journal is the truth: a rollout is on disk before anything counts it as done.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nemo_gym.client import ServerClient
from nemo_gym.config import mask_secrets
from nemo_gym.config.hints import close_matches
from nemo_gym.errors import JournalError, NeMoGymError
from nemo_gym.journal import Journal
from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for
from nemo_gym.records import agent_of
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.display.progress import Progress
from nemo_gym.rollout_collection.display.screen import Display
from nemo_gym.rollout_collection.execution.executor import Executor, ExecutorState
from nemo_gym.rollout_collection.execution.executors import OpenedExecutor, executor_named
from nemo_gym.rollout_collection.outcome import Failure, Outcome, Success
from nemo_gym.rollout_collection.planning.prepare import Prepared, prepare, prepare_folder
from nemo_gym.rollout_collection.recording.ledger import Ledger
from nemo_gym.rollout_collection.recording.manifest import METRICS_WRITTEN
from nemo_gym.rollout_collection.recording.rollouts import Rollouts
from nemo_gym.rollout_collection.recording.status_file import StatusFile, exclusive
from nemo_gym.rollout_collection.recording.waiting import ServedLimits
from nemo_gym.rollout_collection.results.agent_metrics import (
    NOBODY_THERE,
    AgentRollouts,
    Entry,
    agent_entries,
    fingerprint,
    write_entries,
)
from nemo_gym.rollout_collection.results.tracking import track_run, tracker_config
from nemo_gym.rollout_collection.servers import Servers
from nemo_gym.terminal import one_line
from nemo_gym.trackers import warn_early

logger = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
"""How long rollouts may go on when the run is asked to stop."""
_NEAR_MISS = 0.85
_CHAT_NAMES = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
"""What the Chat Completions API calls parameters that have another name here."""


@dataclass
class Collected:
    """What a collection leaves."""

    rollouts: Rollouts
    ledger: Ledger
    output: Path
    stopped_by: str | None = None
    """Why it ended before all was run."""
    entries: list[Entry] | None = None
    """The metrics of each agent; None where nothing was aggregated."""
    tracked: list[str] = field(default_factory=list)
    """What is to be said of the trackers."""
    warnings: list[str] = field(default_factory=list)
    """What the run should have left besides its rollouts, and could not."""


class Recorder:
    """Takes every outcome: journal first, then the counts. Its trouble ends the run, not the event loop."""

    def __init__(self, config: RolloutCollectionConfig, prepared: Prepared, files: ExitStack) -> None:
        output = Path(config.output_jsonl_fpath)
        owed = prepared.owed
        self.ledger = Ledger(
            planned=owed.planned,
            resumed=owed.planned - owed.to_run - owed.left_alone_by_class.total(),
            left_alone=owed.left_alone_by_class,
        )
        self.progress = Progress(owed.to_run, owed.by_agent.copy(), prepared.found.columns)
        self.missing = owed.by_agent + owed.left_alone_by_agent
        """Rollouts of the plan that have not succeeded, by agent."""
        self.trouble: NeMoGymError | None = None
        self.is_over_budget = False
        self.on_trouble: Callable[[], None] = lambda: None
        self.in_flight: Callable[[], int] = lambda: 0
        self._to_run = owed.to_run
        self._max_failure_rate = config.max_failure_rate
        self._prepared = prepared
        self._files = files
        self._journal = files.enter_context(Journal(output))
        self._failures_path = failures_path_for(output)
        self._failures: Journal | None = None

    def settle(self, outcome: Outcome) -> None:
        if self.trouble is not None:
            return  # it cannot be written, so it was not run
        try:
            self._write(outcome)
            self.ledger.take(outcome)
            self.progress.take(outcome)
        except Exception as error:  # the boundary of the record: a run that cannot keep count must stop
            known = error if isinstance(error, JournalError) else None
            self.trouble = known or JournalError(f"cannot record {outcome.key}: {error!r}")
            self.on_trouble()
            return
        if isinstance(outcome, Failure) and not self.is_over_budget:
            self._check_budget()

    def _check_budget(self) -> None:
        if self.ledger.exceeds(self._max_failure_rate, self.in_flight(), self._to_run):
            self.is_over_budget = True
            self.on_trouble()

    def _write(self, outcome: Outcome) -> None:
        if isinstance(outcome, Success):
            offset = self._journal.append(outcome.line)
            key = outcome.key
            self._prepared.found.index.add(key, offset)
            columns = self._prepared.found.columns[outcome.agent]
            columns.add(*key, outcome.numbers, outcome.odd, outcome.is_retried)
            self.missing[outcome.agent] -= 1
        elif outcome.is_kept:
            if self._failures is None:
                self._failures = self._files.enter_context(Journal(self._failures_path))
            self._failures.append(outcome.line())

    def sync(self) -> None:
        self._journal.sync()
        if self._failures is not None:
            self._failures.sync()


class Collection:
    """One run into one output."""

    def __init__(self, config: RolloutCollectionConfig, servers: Servers, display: Display) -> None:
        self._config = config
        self._executor_kind = executor_named(config.executor)
        self._servers = servers
        self._display = display
        self._served_limits = ServedLimits(servers.process_urls if config.adaptive_concurrency else ())
        self._executor: Executor | None = None
        self._opening: asyncio.Timeout | None = None
        self._stopped_by: str | None = None

    @property
    def is_stopping(self) -> bool:
        return self._stopped_by is not None

    def stop(self, why: str) -> None:
        """End early: what runs may go on for some seconds; asked a second time, leave at once."""
        grace_s = STOP_GRACE_S if self._stopped_by is None else 0.0
        self._stopped_by = self._stopped_by or why
        if self._executor is not None:
            self._executor.stop(grace_s)
        elif self._opening is not None:
            opening, self._opening = self._opening, None
            opening.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> Collected:
        config = self._config
        output = Path(config.output_jsonl_fpath)
        self._executor_kind.check(self._servers)
        prepare_folder(config)
        with exclusive(output) as status:
            trackers = tracker_config(config, self._servers.values)
            about = [*described(config, self._servers), *misspelt_parameters(config), *warn_early(trackers)]
            for line in about:
                self._display.note(line)
            self._servers.check_settings()  # before an earlier run is set aside
            prepared = prepare(config, self._servers, self._display.note)
            if not prepared.is_resumed:
                self._display.note(f"{prepared.owed.to_run} rollouts to run")
            async with AsyncExitStack() as opened:
                with ExitStack() as files:
                    recorder = Recorder(config, prepared, files)
                    prepared.manifest.save(state="running", ledger=recorder.ledger.as_data())
                    client = await self._play(prepared, recorder, status, opened)
                return await self._finished(prepared, recorder, client, opened)

    async def _play(
        self, prepared: Prepared, recorder: Recorder, status: StatusFile, opened: AsyncExitStack
    ) -> ServerClient | None:
        """Run what is owed; gives the client of the servers where they are open in this process."""
        if not prepared.owed.to_run:
            return None
        ready = await self._open_executor(prepared.owed.to_run, opened)
        if ready is None:
            return None
        self._servers, self._executor = ready.servers, ready.executor
        executor = ready.executor
        recorder.in_flight = executor.in_flight
        recorder.on_trouble = lambda: executor.stop(0.0)
        try:
            # Two of them: a server that is slow to tell its limits must not put off the sync.
            async with (
                _ticking(lambda: self._tick(executor, recorder, status)),
                _ticking(self._served_limits.ask),
            ):
                if self._stopped_by is None:
                    await executor.run(prepared.owed.rollouts(), recorder.settle)
        finally:
            self._display.finish(recorder.progress.snapshot(self._state(executor)))
            with suppress(JournalError):  # the trouble that stopped the run is told by itself
                prepared.manifest.save(state="stopped", ledger=recorder.ledger.as_data())
        return ready.client

    async def _open_executor(self, to_run: int, opened: AsyncExitStack) -> OpenedExecutor | None:
        """None if the run was stopped meanwhile."""
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

    async def _tick(self, executor: Executor, recorder: Recorder, status: StatusFile) -> None:
        """Once a second: sync, status, progress."""
        try:
            await asyncio.to_thread(recorder.sync)
        except JournalError as error:
            recorder.trouble = recorder.trouble or error
            executor.stop(0.0)
        state = self._state(executor)
        snapshot = recorder.progress.snapshot(state)
        self._display.show(snapshot)
        status.write(
            done=snapshot.done,
            total=snapshot.total,
            failed=snapshot.failed,
            per_minute=round(snapshot.per_minute, 1),
            eta_s=snapshot.eta_s,
            in_flight=state.in_flight,
            limits=state.limits,
            served=self._servers.to_host is None,
            oldest=state.oldest,
        )

    def _state(self, executor: Executor) -> ExecutorState:
        """What the executor does, with the limits that other processes keep."""
        state = executor.state()
        return replace(state, limits=state.limits | self._served_limits.latest)

    async def _finished(
        self,
        prepared: Prepared,
        recorder: Recorder,
        client: ServerClient | None,
        opened: AsyncExitStack,
    ) -> Collected:
        ledger = recorder.ledger
        if recorder.trouble is not None:
            raise JournalError(
                f"{recorder.trouble}. The {ledger.succeeded} rollouts before that are safe; go on with "
                "+resume_from_cache=true"
            ) from recorder.trouble
        stopped_by = self._stopped_by
        if recorder.is_over_budget:
            stopped_by = f"more failed than max_failure_rate={self._config.max_failure_rate:g} allows"
        output = Path(self._config.output_jsonl_fpath)
        rollouts = Rollouts(output, prepared.found.index.sorted_offsets())
        collected = Collected(rollouts, ledger, output, stopped_by)
        state = "complete" if ledger.is_complete else "incomplete"
        prepared.manifest.save(state=state, ledger=ledger.as_data())
        if not self._config.disable_aggregation and len(rollouts):
            try:
                await self._measure(collected, prepared, recorder, client, opened)
            except Exception as error:  # the boundary of the metrics: the rollouts are there without them
                logger.debug("metrics", exc_info=True)
                again = f"ng_aggregate_rollouts +input_glob={output} +output_jsonl_fpath={output}"
                reason = one_line(str(error)) or type(error).__name__
                collected.warnings.append(
                    f"warning: the metrics could not be computed: {reason}; to try again: {again} "
                    "+merge_shards=false"
                )
        return collected

    async def _measure(
        self,
        collected: Collected,
        prepared: Prepared,
        recorder: Recorder,
        client: ServerClient | None,
        opened: AsyncExitStack,
    ) -> None:
        """Compute and write the metrics, then tell the trackers; of a stopped run only the default ones."""
        why = NOBODY_THERE
        if collected.stopped_by is not None:
            client, why = None, "the run was stopped"
        elif client is None:
            try:
                client = await opened.enter_async_context(self._servers.open())
            except NeMoGymError as error:
                logger.warning("No server can be asked for its own metrics: %s", one_line(str(error)))
        found = prepared.found.columns
        agents = {
            agent: AgentRollouts(
                found[agent],
                _records_of(agent, collected.rollouts),
                planned=len(found[agent]) + recorder.missing[agent],
            )
            for agent in dict.fromkeys([*found, *recorder.missing])
            if agent
        }
        path, about = aggregate_metrics_path_for(collected.output), prepared.manifest.data
        entries = await agent_entries(agents, client, why)
        written = about.get(METRICS_WRITTEN)
        if written is None or written != fingerprint(path, entries):  # else it would be the same file
            await asyncio.to_thread(write_entries, path, entries)
        collected.entries = entries
        prepared.manifest.save(**{METRICS_WRITTEN: fingerprint(path, entries)})
        if collected.stopped_by is not None:
            return
        lines = collected.rollouts.lines() if self._config.upload_rollouts_to_wandb else None
        trackers = tracker_config(self._config, self._servers.values)
        settings = {**self._config.model_dump(), "servers": about.get("servers")}
        collected.tracked = await track_run(trackers, settings, entries, lines, collected.output)


def _records_of(agent: str, rollouts: Rollouts) -> Callable[[], Iterator[dict[str, Any]]]:
    return lambda: (record for record in rollouts if agent_of(record) == agent)


@asynccontextmanager
async def _ticking(tick: Callable[[], Any]) -> AsyncIterator[None]:
    """`tick` runs every second meanwhile."""

    is_over = asyncio.Event()

    async def run() -> None:
        while not is_over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await is_over.wait()
                    return
            try:
                await tick()
            except Exception:  # the boundary of what is only news; the next tick syncs again
                logger.exception("progress")

    ticking = asyncio.create_task(run())
    try:
        yield
    finally:
        is_over.set()  # not cancelled: a sync that goes on must end before the file is closed
        await asyncio.wait({ticking}, timeout=30)


def described(config: RolloutCollectionConfig, servers: Servers) -> list[str]:
    """What a run is going to do, for its first lines."""
    repeats = config.num_repeats if config.num_repeats is not None else 1
    parts = [
        f"limit {config.limit}" if config.limit is not None else "all rows",
        f"repeats {repeats}",
        "with seeds" if config.num_repeats_add_seed else "",
        f"agent {config.agent_name}" if config.agent_name else "agents as the rows say",
        f"overrides {mask_secrets(overrides)}" if (overrides := config.responses_create_params) else "",
        f"prompt {config.prompt_config}" if config.prompt_config else "",
    ]
    where = executor_named(config.executor).where(config, servers)
    adaptive = ", adaptive" if config.adaptive_concurrency else ""
    return [
        f"Collecting {config.input_jsonl_fpath} into {config.output_jsonl_fpath}: "
        + ", ".join(part for part in parts if part),
        f"At most {config.parallel} rollouts in flight{adaptive}; servers {where}",
    ]


def misspelt_parameters(config: RolloutCollectionConfig) -> list[str]:
    """Warnings of overrides that are nearly parameters of the API; endpoints take others of their own."""
    overrides = config.responses_create_params
    if not overrides:
        return []
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming as Params  # slow to load

    known = {*Params.model_fields, *Params._rare}
    meant = {
        name: _CHAT_NAMES.get(name) or next(iter(close_matches(name, known, _NEAR_MISS)), None)
        for name in overrides
        if name not in known
    }
    return [
        f"warning: responses_create_params.{name} is not a parameter of the Responses API "
        f"(did you mean {close}?); it is sent as it is"
        for name, close in meant.items()
        if close is not None
    ]
