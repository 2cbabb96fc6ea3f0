"""`ng_run`."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.cli.main import discard_output
from nemo_gym.cli.output import say
from nemo_gym.cli.status import status_table
from nemo_gym.client import base_url
from nemo_gym.config import GymConfig, assign_ports
from nemo_gym.errors import ConfigError
from nemo_gym.launch.fleet import FleetConfig, run_fleet
from nemo_gym.launch.limits import raise_file_limit
from nemo_gym.servers.secured import published_access_token, with_access_token
from nemo_gym.terminal import counted


class RunConfig(ConfigPaths, FleetConfig):
    pass


def run(config: GymConfig, options: RunConfig) -> int:
    if not config.servers:
        raise ConfigError(
            "the configuration defines no servers to run; give its files with '+config_paths=[…]'"
        )
    raise_file_limit()
    config = with_access_token(assign_ports(config))
    with published_access_token(config) as about_access:
        return asyncio.run(_until_stopped(config, options, about_access))


async def _until_stopped(config: GymConfig, options: RunConfig, about_access: str | None) -> int:
    """Start all servers, and stop them at a signal or when one of them dies."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    output = _Output(stop)
    output.say(f"Starting {counted(len(config.servers), 'server')} …")
    try:
        async with run_fleet(config, options, output.say_line) as fleet:
            await _unless_stopped(fleet.start(), stop)
            if not stop.is_set():
                head = base_url(config.head_server.host, config.head_server.port)
                output.say(status_table(fleet.statuses()))
                output.say(f"All servers are ready; the head server is at {head}. Press Ctrl-C to stop them.")
                if about_access is not None:
                    output.say(about_access)
                await _unless_stopped(fleet.watch(), stop)
            output.say("Stopping the servers …")
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    fleet.raise_deaths()
    output.say("All servers are stopped.")
    return 0


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Wait until the work is done or `stop` is set."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


class _Output:
    """Standard output. If its reader closes the pipe, the servers are stopped in good order."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def say(self, text: str) -> None:
        try:
            say(text, flush=True)
        except BrokenPipeError:
            discard_output()
            self._stop.set()

    def say_line(self, server: str, line: str) -> None:
        self.say(f"[{server}] {line}")


COMMAND = Command(
    "run",
    RunConfig,
    run,
    "ng_run '+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]' "
    "+policy_base_url=http://127.0.0.1:8000/v1 +policy_api_key=none +policy_model_name=my-model",
    log_level=logging.INFO,
)
