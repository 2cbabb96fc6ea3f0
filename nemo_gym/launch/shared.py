"""Servers that all worker processes of a run share."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nemo_gym.config import GymConfig, ServerInstance, assign_ports
from nemo_gym.launch.components import load_module, server_class
from nemo_gym.launch.fleet import Fleet, FleetConfig
from nemo_gym.log_output import log_foreign_line
from nemo_gym.servers.secured import with_access_token

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared:
    """The configuration for the worker processes of a run."""

    config: GymConfig
    """With the addresses of the shared servers."""
    names: frozenset[str] = frozenset()
    """The names of the shared servers."""


@asynccontextmanager
async def host_shared(config: GymConfig) -> AsyncIterator[Shared]:
    """Run the servers whose class says `is_one_per_run`, each in a process of its own.

    One that dies is restarted, as often as `ng_run +restart_policy=on_failure` would restart it.
    """
    names = frozenset(instance.name for instance in config.servers if _is_shared(config, instance))
    if not names:
        yield Shared(config)
        return
    config = with_access_token(assign_ports(config))
    fleet = Fleet(config, FleetConfig(restart_policy="on_failure"), _Warnings(), only=names)
    try:
        await fleet.start()
        watching = asyncio.create_task(_watch(fleet))
        try:
            yield Shared(config, names)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        await fleet.stop()


def _is_shared(config: GymConfig, instance: ServerInstance) -> bool:
    cls = server_class(instance, load_module(instance, config.roots))
    return cls.is_one_per_run(instance.settings)


async def _watch(fleet: Fleet) -> None:
    """Log why a server is gone. Rollouts that call it fail by themselves."""
    try:
        await fleet.watch()
    except* Exception as errors:
        for error in errors.exceptions:
            logger.error("%s", error)


class _Warnings:
    """Shows the warnings and errors in the output of servers, with their tracebacks."""

    def __init__(self) -> None:
        self._shown: set[str] = set()
        """The servers whose last log line was a warning."""

    def __call__(self, name: str, line: str) -> None:
        if line.startswith(("WARNING", "ERROR", "CRITICAL")):
            self._shown.add(name)
        elif not line.startswith("  "):
            self._shown.discard(name)
        if name in self._shown:
            log_foreign_line(f"{name}: {line}")
