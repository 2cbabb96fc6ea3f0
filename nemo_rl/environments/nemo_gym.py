"""The handle to NeMo Gym: rows in, message logs of tokens out. The only module here that calls its servers.

Invariant: when a call ends, also by an error or cancellation, none of its rows is still being played.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.activity import Activity, current_activity
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.failures import Boundary
from nemo_gym.http import ServerCallError, ServerUnreachableError
from nemo_gym.launch import open_servers
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollout_collection.execution.play import PLAY_ERRORS, NotAnObject, kind_of_play_error, play
from nemo_gym.types import AGENT_REF_KEY_NAME
from nemo_rl.environments.gym_results import GymResult, gym_result
from nemo_rl.experience.failures import GymTransportError, gym_failure

if TYPE_CHECKING:
    from typing import Self

    from nemo_gym.client import ServerClient
    from nemo_rl.environments.gym_results import Decoder

__all__ = ["NemoGym", "NemoGymBatch"]

Row = dict[str, Any]
Timing = dict[str, float]

_ROWIDX = "_rowidx"
_LOAD_WEIGHTS_S = 300.0
"""Timeout for a model server to load new weights: the file may be large and the disk slow."""


@dataclass(frozen=True)
class RowLimits:
    """Limits for playing rows."""

    max_concurrent_rows: int = 1024
    """Rows played at once, over all calls of one handle. Generous: the model server has its own limit."""
    row_timeout_s: float = 3600.0
    """For one rollout, verification included."""
    call_timeout_s: float = 900.0
    """For one call of a rollout, to a model endpoint or a tool."""

    def __post_init__(self) -> None:
        for name in ("max_concurrent_rows", "row_timeout_s", "call_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)}")


class _Clock:
    """How long a call waited for results and processed them."""

    def __init__(self) -> None:
        self.await_s = 0.0
        self.postprocess_s = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.await_s += time.perf_counter() - began

    @contextmanager
    def postprocessing(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.postprocess_s += time.perf_counter() - began

    def metrics(self, prefix: str) -> Timing:
        total_s = self.await_s + self.postprocess_s
        return {
            f"{prefix}/await_results": self.await_s,
            f"{prefix}/postprocess_results": self.postprocess_s,
            f"{prefix}/postprocess_results_pct": 100.0 * self.postprocess_s / total_s if total_s else 0.0,
        }


@dataclass(frozen=True)
class _Opened:
    """State that belongs to one event loop."""

    client: ServerClient
    slots: asyncio.Semaphore


class _GymServers:
    """The servers of a configuration, hosted in this process, or those of a running `ng_run`.

    Open between `__aenter__` and `__aexit__`, in one event loop.
    """

    def __init__(
        self,
        config_paths: str | Path | Sequence[str | Path] = (),
        overrides: Mapping[str, Any] | Sequence[str] = (),
        *,
        head_server: str | BaseServerConfig | None = None,
        max_concurrent_rows: int = RowLimits.max_concurrent_rows,
        row_timeout_s: float = RowLimits.row_timeout_s,
        call_timeout_s: float = RowLimits.call_timeout_s,
    ) -> None:
        if bool(config_paths) == (head_server is not None):
            raise ValueError(
                "pass either config_paths, to host the servers here, or head_server='host:port' of an ng_run"
            )
        self._config_paths = config_paths
        self._overrides = overrides
        self._head = _address(head_server) if isinstance(head_server, str) else head_server
        self._limits = RowLimits(max_concurrent_rows, row_timeout_s, call_timeout_s)
        self._running = AsyncExitStack()
        self._opened: _Opened | None = None

    async def __aenter__(self) -> Self:
        client = await self._running.enter_async_context(self._servers())
        self._opened = _Opened(client, asyncio.Semaphore(self._limits.max_concurrent_rows))
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._opened = None
        await self._running.aclose()

    @asynccontextmanager
    async def _servers(self) -> AsyncIterator[ServerClient]:
        if self._head is None:
            async with open_servers(self._config_paths, self._overrides) as client:
                yield client
        else:  # fetching its configuration blocks
            yield await asyncio.to_thread(RolloutCollectionHelper().setup_server_client, self._head)

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise RuntimeError(f"the servers are not open; use `async with {type(self).__name__}(…) as gym:`")
        return self._opened

    async def load_weights(self, model_server_name: str, model_path: str | Path, weight_version: int) -> Any:
        """Have a model server use these weights from now on; returns its response."""
        body = {"model_path": str(model_path), "weight_version": weight_version}
        return await self._post(model_server_name, "/load_weights", body, _LOAD_WEIGHTS_S)

    async def _results(
        self, rows: Sequence[Row], tokenizer: Decoder, clock: _Clock
    ) -> AsyncGenerator[tuple[int, GymResult], None]:
        """The index and result of every row, in the order in which they finish.

        An outage is raised after all other rows have finished, so that they need not be played again; any
        other failure is raised at once.
        """
        tasks = {asyncio.create_task(self._play(row)): row[_ROWIDX] for row in rows}
        pending, outage = set(tasks), None
        try:
            while pending:
                with clock.waiting():
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: (task.exception() is not None, tasks[task])):
                    if isinstance(error := task.exception(), GymTransportError):
                        outage = outage or error
                        continue
                    with clock.postprocessing():
                        result = _converted(task.result(), tasks[task], tokenizer)
                    yield tasks[task], result
            if outage is not None:
                raise outage
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, row: Row) -> Any:
        agent = row[AGENT_REF_KEY_NAME]["name"]
        async with self._open.slots:
            current_activity.set(Activity(f"row {row[_ROWIDX]}", self._limits.call_timeout_s))
            try:
                return (await play(self._open.client, agent, row, self._limits.row_timeout_s)).rollout
            except NotAnObject as error:
                return error.value  # refused when it is converted
            except PLAY_ERRORS as error:
                raise gym_failure(kind_of_play_error(error, Boundary.TRAINER), str(error)) from error

    async def _post(self, server: str, path: str, body: Any, timeout_s: float) -> Any:
        try:
            response = await self._open.client.post(server, path, json=body, timeout=timeout_s)
            response.raise_for_status()
            return await response.json()
        except (ServerCallError, ServerUnreachableError) as error:
            raise gym_failure(error.kind, str(error)) from error


class NemoGym(_GymServers):
    """Yields results as rows finish."""

    async def run_rollouts(
        self, rows: Sequence[Row], tokenizer: Decoder, timer_prefix: str
    ) -> AsyncGenerator[tuple[int, GymResult, Timing | None], None]:
        """Play the rows; yields `(_rowidx, result, None)`, the last one with the times of the call."""
        clock, left = _Clock(), len(rows)
        async with aclosing(self._results(rows, tokenizer, clock)) as results:
            async for rowidx, result in results:
                left -= 1
                yield rowidx, result, None if left else clock.metrics(timer_prefix)


class NemoGymBatch(_GymServers):
    """Returns all results at once."""

    async def run_rollouts(
        self, rows: Sequence[Row], tokenizer: Decoder, timer_prefix: str
    ) -> tuple[list[GymResult], Timing]:
        """Play the rows; returns the results in the order of the rows, and the times of the call."""
        clock = _Clock()
        async with aclosing(self._results(rows, tokenizer, clock)) as results:
            by_row = {rowidx: result async for rowidx, result in results}
        return [by_row[row[_ROWIDX]] for row in rows], clock.metrics(timer_prefix)


def _address(text: str) -> BaseServerConfig:
    host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"head_server must be 'host:port', not {text!r}")
    return BaseServerConfig(host=host, port=int(port))


def _converted(rollout: Any, rowidx: int, tokenizer: Decoder) -> GymResult:
    try:
        return gym_result(rollout, tokenizer)
    except Exception as error:
        error.add_note(f"in the response for row {rowidx}")
        raise
