"""The Python interface: `RolloutCollectionHelper`."""

import asyncio
import io
import sys
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nemo_gym.activity import Activity, current_activity
from nemo_gym.client import ServerClient
from nemo_gym.config import component_roots, max_rollout_attempts, secret_values
from nemo_gym.config.plain_data import escaped, plain_data
from nemo_gym.config.resolve import resolve_part
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, HeadServerUnreachableError, InputError
from nemo_gym.journal import read_lines
from nemo_gym.log_output import logs_shown
from nemo_gym.metrics import columns_of
from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for
from nemo_gym.python_terms import errors_in_python, in_python
from nemo_gym.records import agent_of, key_of, packed, parsed
from nemo_gym.rollout_collection.collection import Collection
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import DEFAULT_PARALLEL, RolloutCollectionConfig
from nemo_gym.rollout_collection.display.dry_run import dry_run
from nemo_gym.rollout_collection.display.end_report import metrics_lines, report
from nemo_gym.rollout_collection.display.examples import ExamplesProgress
from nemo_gym.rollout_collection.display.screen import Display
from nemo_gym.rollout_collection.execution.play import play
from nemo_gym.rollout_collection.planning.materialize import materialized_rows
from nemo_gym.rollout_collection.planning.remaining import read_plan, remaining_work
from nemo_gym.rollout_collection.recording.output_lock import exclusive
from nemo_gym.rollout_collection.recording.recovery import recover_failures, repair_output
from nemo_gym.rollout_collection.results.agent_metrics import AgentRollouts, write_aggregate_metrics
from nemo_gym.rollout_collection.results.collection_result import CollectionResult
from nemo_gym.rollout_collection.results.tracking import track_run, tracker_config
from nemo_gym.rollout_collection.run_servers import Servers, served_by, setup_client
from nemo_gym.text_fit import Screen
from nemo_gym.trackers import TrackerConfig
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

Row = dict[str, Any]

_TIMEOUTS = RolloutCollectionConfig.model_fields
_CALL_TIMEOUT_S: float = _TIMEOUTS["call_timeout_s"].default
_ROLLOUT_TIMEOUT_S: float = _TIMEOUTS["rollout_timeout_s"].default


class PythonDisplay(Display):
    """Shows settings as Python writes them."""

    def note(self, text: str) -> None:
        super().note(in_python(text))


def _display(quiet: bool) -> PythonDisplay:
    return PythonDisplay(io.StringIO() if quiet else sys.stderr)


class RolloutCollectionHelper(BaseModel):
    """Collects rollouts with the servers open around it, else with those of a head server."""

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        """The client that the other methods use."""
        with errors_in_python():
            return setup_client(head_server_config)

    async def run_from_config(
        self, config: RolloutCollectionConfig, *, quiet: bool = False
    ) -> CollectionResult:
        """Collect; returns the rollouts sorted by key, resumed ones included, each read when it is used.

        The result also has `metrics`, `failures`, `ledger` and `manifest`. It is empty after a dry run. With
        `quiet`, neither progress nor a report is written to standard error.
        """
        display = _display(quiet)
        with errors_in_python():
            if isinstance(config, Mapping):
                raise ConfigError("run_from_config takes a RolloutCollectionConfig, not a mapping")
            if config.dry_run:
                in_sight = self._servers_in_sight()
                config = config if in_sight is None else _resolved(config, in_sight.values)
                display.note("\n".join(dry_run(config, in_sight, _policy())))
                return CollectionResult.empty()
            servers = served_by(self.setup_server_client())
            config = _resolved(config, servers.values)
            with logs_shown(secret_values(servers.values)):
                collected = await Collection(config, servers, display, _policy()).run()
            display.note("\n".join(report(collected, Screen.of(sys.stderr))))
            return CollectionResult.of(collected)

    def _servers_in_sight(self) -> Servers | None:
        try:
            return served_by(self.setup_server_client())
        except HeadServerUnreachableError:
            return None

    def run_examples(
        self,
        examples: Iterable[Row],
        head_server_config: BaseServerConfig | None = None,
        semaphore: AbstractAsyncContextManager[Any] | None = None,
        *,
        quiet: bool = False,
    ) -> Iterator[Awaitable[tuple[Row, Row]]]:
        """Play these rows; returns an awaitable per row, in the order in which they finish.

        Each returns `(row, result)` or raises the error, also for a rollout that its agent declares failed:
        the caller decides what a failure means. `quiet` shows no bar.
        """
        client = self.setup_server_client(head_server_config)
        slots = asyncio.Semaphore(DEFAULT_PARALLEL) if semaphore is None else semaphore

        rows = list(examples)
        progress = ExamplesProgress(len(rows), _display(quiet))

        async def played(row: Row) -> tuple[Row, Row]:
            async with slots:
                with progress.playing():
                    return row, await _played(client, row)

        return asyncio.as_completed([played(row) for row in rows])

    def _preprocess_rows_from_config(self, config: RolloutCollectionConfig) -> list[Row]:
        """The materialized inputs."""
        return materialized_rows(config, component_roots())

    def _load_from_cache(
        self, config: RolloutCollectionConfig
    ) -> tuple[list[Row], list[Row], list[Row], list[list[bytes]]]:
        """An earlier run: the rows that remain, the rows that are done, their results, and those as lines."""
        output, plan = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
        with exclusive(output):  # a repair would spoil the line that another process is writing
            repair_output(output)
        lines = [line.data.strip() for line in read_lines(output)]
        results = {_packed_key(record): record for record in map(parsed, lines)}
        past, _ = recover_failures(failures_path_for(output))
        work = remaining_work(plan, results, past, max_rollout_attempts())
        rows = {key: parsed(line) for key, line in read_plan(plan) if key in results}
        done = [(key, line) for key, line in zip(results, lines, strict=True) if key in rows]
        return (
            [parsed(rollout.line) for rollout in work.rollouts()],
            [rows[key] for key, _ in done],
            [results[key] for key, _ in done],
            [[line] for _, line in done],
        )

    async def _call_aggregate_metrics(
        self, results: list[Row], rows: list[Row], output_fpath: Path
    ) -> Path | None:
        """Write, show and track the metrics of these results; `rows[i]` names the agent and the key of
        `results[i]`."""
        if not results:
            return None
        by_agent: dict[str, list[Row]] = {}
        for row, result in zip(rows, results, strict=True):
            if agent := agent_of(row):
                by_agent.setdefault(agent, []).append({**result, **_indices(row)})
        path = aggregate_metrics_path_for(output_fpath)
        agents = {
            agent: AgentRollouts(columns_of(records), partial(iter, records), is_asked=False)
            for agent, records in by_agent.items()
        }
        client = self.setup_server_client()
        entries = await write_aggregate_metrics(path, agents, client)
        trackers = tracker_config(TrackerConfig(), client.global_config_dict)
        tracked = await track_run(trackers, {}, entries, None, output_fpath)
        _display(quiet=False).note("\n".join([*metrics_lines(entries, Screen.of(sys.stderr)), *tracked]))
        return path


def _resolved(config: RolloutCollectionConfig, values: Mapping[str, Any]) -> RolloutCollectionConfig:
    """The configuration with interpolations in its overrides filled in from the servers' configuration."""
    key, params = RESPONSES_CREATE_PARAMS_KEY_NAME, plain_data(config.responses_create_params)
    return config.model_copy(update={key: resolve_part(key, params, escaped(values))})


def _indices(row: Row) -> Row:
    return {key: row[key] for key in (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME) if key in row}


def _policy() -> CollectionPolicy:
    return CollectionPolicy(component_roots(), max_rollout_attempts())


def _packed_key(row: Mapping[str, Any]) -> int:
    key = key_of(dict(row))
    assert key is not None, "the output was repaired"
    return packed(key)


async def _played(client: ServerClient, row: Row) -> Row:
    """The result of one row."""
    if not agent_of(row):
        raise InputError(f'a row names no agent; give it "{AGENT_REF_KEY_NAME}": {{"name": "<agent>"}}')
    rollout = f"{row.get(TASK_INDEX_KEY_NAME, '?')}:{row.get(ROLLOUT_INDEX_KEY_NAME, '?')}"
    current_activity.set(Activity(rollout, _CALL_TIMEOUT_S))
    result = (await play(client, agent_of(row), row, _ROLLOUT_TIMEOUT_S)).rollout
    return {**result, **_indices(row), AGENT_REF_KEY_NAME: row[AGENT_REF_KEY_NAME]}
