"""`ng_run`."""

import asyncio
import logging
import signal
import sys

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.cli.status import status_table
from nemo_gym.client import base_url
from nemo_gym.config import GymConfig, assign_ports
from nemo_gym.errors import ConfigError
from nemo_gym.launch.fleet import Fleet, FleetConfig, run_fleet
from nemo_gym.launch.limits import raise_file_limit


class RunConfig(ConfigPaths, FleetConfig):
    pass


def run(config: GymConfig, options: RunConfig) -> int:
    if not config.servers:
        raise ConfigError("the configuration has no servers to run; name its files with '+config_paths=[…]'")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    raise_file_limit()
    return asyncio.run(_until_stopped(assign_ports(config), options))


async def _until_stopped(config: GymConfig, options: RunConfig) -> int:
    """Everything between the first process and the last: a signal or a death ends it."""
    stopping = _stop_on_signals()
    serving = asyncio.create_task(_serve(config, options))
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        print("Stopping the servers …", flush=True)
        serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        print("All servers are stopped.", flush=True)
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    finally:
        stopping.cancel()
    return 0


async def _serve(config: GymConfig, options: RunConfig) -> None:
    count = len(config.servers)
    print(f"Starting {count} servers …", flush=True)
    async with run_fleet(config, options, _print_line) as fleet:
        _say_ready(config, fleet)
        await fleet.watch()


def _say_ready(config: GymConfig, fleet: Fleet) -> None:
    head = base_url(config.head_server.host, config.head_server.port)
    print(status_table(fleet.statuses()))
    print(f"All servers are ready; the head server is at {head}. Ctrl-C stops them.", flush=True)


def _print_line(server: str, line: str) -> None:
    print(f"[{server}] {line}", flush=True)


def _stop_on_signals() -> "asyncio.Task[bool]":
    """Done at the first Ctrl-C or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return asyncio.create_task(stop.wait())


COMMAND = Command(
    "run",
    RunConfig,
    run,
    "ng_run '+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]'",
)
