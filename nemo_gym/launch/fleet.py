"""Server processes, one per server, behind a head server.

Invariant: when the context ends, for whatever reason, all these processes have ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Literal

from pydantic import Field

from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ServerDiedError
from nemo_gym.launch.server_process import LogLine, ServerProcess
from nemo_gym.log_output import EVENT
from nemo_gym.servers.gate import Access
from nemo_gym.servers.head import HeadServer, ServerStatus
from nemo_gym.servers.serve import serve_head

logger = logging.getLogger(__name__)


class FleetConfig(BaseNeMoGymCLIConfig):
    """How server processes are started and restarted."""

    startup_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds until every server must accept requests. Generous, because some servers load models."""
    restart_policy: Literal["off", "on_failure"] = "off"
    """What to do when a server's process dies. `off`: stop all servers with exit code 1. `on_failure`: start
    the process again at the same address."""
    max_restarts: int = Field(default=3, ge=0)
    """With `restart_policy=on_failure`: how often one server is restarted before all are stopped."""


class Fleet:
    """The processes of a configuration's servers."""

    def __init__(
        self,
        config: GymConfig,
        options: FleetConfig,
        on_line: LogLine,
        *,
        only: Collection[str] | None = None,
    ) -> None:
        """`only`: the names of the servers to start; None for all."""
        self._options = options
        self.processes = [
            ServerProcess(config, instance, port, worker, on_line)
            for instance in config.servers
            if only is None or instance.name in only
            for worker, port in _workers(instance.settings.get("worker_ports"), instance.port or 0)
        ]

    def statuses(self) -> list[ServerStatus]:
        """One entry per process, for the head server."""
        return [
            ServerStatus(
                name=process.name,
                kind=process.instance.kind,
                implementation=process.instance.implementation,
                host=process.instance.host,
                port=process.port,
                pid=process.pid,
                status=process.status,
                restarts=process.restarts,
            )
            for process in self.processes
        ]

    async def start(self) -> None:
        """Start all at the same time; raise the first error."""
        starts = [
            asyncio.ensure_future(process.start(self._options.startup_timeout_s))
            for process in self.processes
        ]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def watch(self) -> None:
        """Run until a server dies and is not to be restarted; raise that as an error."""
        async with asyncio.TaskGroup() as watchers:
            for process in self.processes:
                watchers.create_task(self._watch_one(process))

    def raise_deaths(self) -> None:
        """After all are stopped: raise an error for a server that died before `watch` noticed."""
        for process in self.processes:
            if process.status == "died" and self._is_final(process):
                raise ServerDiedError(process.death_message())

    def _is_final(self, process: ServerProcess) -> bool:
        return self._options.restart_policy == "off" or process.restarts >= self._options.max_restarts

    async def _watch_one(self, process: ServerProcess) -> None:
        while True:
            await process.ended()
            if self._is_final(process):
                raise ServerDiedError(process.death_message())
            number, limit = process.restarts + 1, self._options.max_restarts
            logger.warning("%s", process.death_message(), extra=EVENT)
            logger.warning("restarting %s (%d of %d)", process.name, number, limit, extra=EVENT)
            with suppress(ServerDiedError):  # counted as one more death
                await process.restart(self._options.startup_timeout_s)

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self.processes))


@asynccontextmanager
async def run_fleet(config: GymConfig, options: FleetConfig, on_line: LogLine) -> AsyncIterator[Fleet]:
    """The servers, not started yet, behind a running head server. All are stopped when the context ends."""
    fleet = Fleet(config, options, on_line)
    head = HeadServer(config=config.head_server, masked_config=config.masked(), statuses=fleet.statuses)
    async with serve_head(head, Access.to(config.head_server.host, config)):
        try:
            yield fleet
        finally:
            await fleet.stop()


def _workers(ports: list[int] | None, port: int) -> list[tuple[int | None, int]]:
    if not ports or len(ports) == 1:
        return [(None, port)]
    return list(enumerate(ports))
