"""Servers of which a run has one, however many processes its rollouts are played in."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nemo_gym.config import GymConfig, ServerInstance, assign_ports
from nemo_gym.launch.components import load_module, server_class
from nemo_gym.launch.fleet import Fleet, FleetConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared:
    """What the processes of a run are told."""

    config: GymConfig
    """With the addresses of the servers that run already."""
    names: frozenset[str] = frozenset()
    """Of those."""


@asynccontextmanager
async def host_shared(config: GymConfig) -> AsyncIterator[Shared]:
    """The servers whose class says `is_one_per_run`, each in a process of its own meanwhile.

    One that dies is started again, as often as `ng_run +restart_policy=on_failure` would.
    """
    names = frozenset(instance.name for instance in config.servers if _is_shared(instance))
    if not names:
        yield Shared(config)
        return
    config = assign_ports(config)
    fleet = Fleet(config, FleetConfig(restart_policy="on_failure"), _log, only=names)
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


def _is_shared(instance: ServerInstance) -> bool:
    return server_class(instance, load_module(instance)).is_one_per_run(instance.settings)


async def _watch(fleet: Fleet) -> None:
    """Rollouts that call a server which is gone for good fail by themselves; here it is only told why."""
    try:
        await fleet.watch()
    except* Exception as errors:
        for error in errors.exceptions:
            logger.error("%s", error)


def _log(name: str, line: str) -> None:
    if line.startswith(("WARNING", "ERROR", "CRITICAL")):
        logger.warning("%s: %s", name, line)
