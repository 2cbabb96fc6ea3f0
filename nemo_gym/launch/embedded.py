"""Embedded hosting: every server of a configuration in the calling process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.client import ServerClient, current_client
from nemo_gym.config import GymConfig, ServerInstance, load_config, overrides_from, redact
from nemo_gym.config.current import global_config_dict
from nemo_gym.config.known_settings import FOR_PYTHON
from nemo_gym.errors import ComponentError, NeMoGymError, ServerNotReadyError
from nemo_gym.http.size_limits import SizeLimits
from nemo_gym.http.transport_choice import client_settings
from nemo_gym.launch.components import component_error, find_component, load_module, server_class
from nemo_gym.launch.limits import raise_file_limit
from nemo_gym.launch.verify_process import NoServers, VerifyProcesses, check_verify
from nemo_gym.python_terms import errors_in_python
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.hosted_app import BACKGROUND_S
from nemo_gym.servers.server_base import Hosting, SimpleServer, current_hosting
from nemo_gym.servers.watchdog import BlockedWarnings, watching

logger = logging.getLogger(__name__)

STARTUP_S = 300.0
"""How long a server may take to start. Generous, because some servers load models."""
SHUTDOWN_S = 5.0
"""How long a server may take to shut down."""


@asynccontextmanager
async def open_servers(
    config_paths: str | Path | Sequence[str | Path] = (),
    overrides: Mapping[str, Any] | Sequence[str] = (),
) -> AsyncIterator[ServerClient]:
    """Host the servers of these configuration files in this process; the client calls them by name.

    `overrides` are those of a command line: strings such as `"policy_model_name=x"`, or a mapping.
    """
    paths = [config_paths] if isinstance(config_paths, str | Path) else list(config_paths)
    async with AsyncExitStack() as running:
        with errors_in_python():
            config = load_config(paths, overrides_from(overrides), accepted=FOR_PYTHON)
            client = await running.enter_async_context(host_embedded(config))
        yield client


@asynccontextmanager
async def host_embedded(config: GymConfig, *, elsewhere: Collection[str] = ()) -> AsyncIterator[ServerClient]:
    """Host the servers of a configuration while the context is open, except those that run `elsewhere`."""
    raise_file_limit()
    servers: dict[str, HostedServer] = {}
    client = ServerClient(config.head_server, config.values, local_servers=servers)
    clients = client_settings(config.data)
    with (
        global_config_dict(config.values),
        _current(client),
        clients,
        watching(BlockedWarnings()),
    ):
        try:
            here = [instance for instance in config.servers if instance.name not in elsewhere]
            for instance in here:
                servers[instance.name] = build_hosted(config, instance.name, client)
            async with AsyncExitStack() as running:
                for instance in here:
                    await running.enter_async_context(_alive(config, instance, servers[instance.name]))
                yield client
        finally:
            for server in servers.values():
                if (processes := getattr(server.app.state, "verify_processes", None)) is not None:
                    processes.close()
            servers.clear()


@asynccontextmanager
async def _alive(config: GymConfig, instance: ServerInstance, server: HostedServer) -> AsyncIterator[None]:
    """Run the server from its start-up to its shutdown. Errors of the caller do not reach it.

    Both run in a task of their own, as with uvicorn, so that one that never ends can be abandoned.
    """
    started, stop = asyncio.Event(), asyncio.Event()
    living = asyncio.create_task(_live(server, started, stop))
    try:
        await _wait_started(instance, living, started)
    except NeMoGymError:
        raise
    except Exception as error:  # the boundary to an environment's own code
        file = find_component(instance, config.roots)
        raise _redacted(component_error(instance, file, error, "started"), config) from error
    try:
        yield
    finally:
        longest_s = SHUTDOWN_S + (BACKGROUND_S if server.has_background else 0)
        stop.set()
        if await _has_ended(living, longest_s):
            living.result()
        else:
            logger.warning(
                "%s: did not shut down within %g s; continuing without waiting for it",
                instance.name,
                longest_s,
            )
            living.cancel()


async def _live(server: HostedServer, started: asyncio.Event, stop: asyncio.Event) -> None:
    async with server.lifespan():
        started.set()
        await stop.wait()


async def _wait_started(
    instance: ServerInstance, living: "asyncio.Task[None]", started: asyncio.Event
) -> None:
    """Wait until the server has started. Raise the error of its start-up; cancel one that takes too long."""
    starting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait({living, starting}, timeout=STARTUP_S, return_when=asyncio.FIRST_COMPLETED)
        if living.done():
            living.result()
        if not started.is_set():
            raise ServerNotReadyError(f"{instance.name} is not ready after {STARTUP_S:g} s; fix its start-up")
    finally:
        starting.cancel()
        if not started.is_set():
            living.cancel()
            await _has_ended(living, SHUTDOWN_S)


async def _has_ended(living: "asyncio.Task[None]", longest_s: float) -> bool:
    if not living.done():
        await asyncio.wait({living}, timeout=longest_s)
    return living.done()


def build_hosted(
    config: GymConfig,
    name: str,
    client: ServerClient,
    *,
    worker: int | None = None,
    working_dir: Path | None = None,
) -> HostedServer:
    """Import, configure and set up one server.

    `working_dir` is where the command was started, if the process has changed its directory since.
    """
    instance = config.server(name)
    file = find_component(instance, config.roots)
    hosting = Hosting(config, instance, client, file, worker, working_dir)
    token = current_hosting.set(hosting)
    try:
        limits = SizeLimits.from_settings(config.data)
        return HostedServer(name, _application(hosting), config.secrets, limits, hosting.folder)
    except ComponentError as error:
        raise _redacted(error, config) from error
    finally:
        current_hosting.reset(token)


def _redacted(error: ComponentError, config: GymConfig) -> ComponentError:
    """The same error without secrets, which the message of an environment may contain."""
    return ComponentError(redact(str(error), config.secrets))


def _application(hosting: Hosting) -> FastAPI:
    """The component's application. For one of several workers, the module's own `app` if it has one."""
    module = load_module(hosting.instance, hosting.config.roots)
    app = getattr(module, "app", None) if hosting.worker is not None else None
    if isinstance(app, FastAPI):
        return app
    cls = server_class(hosting.instance, module)
    try:
        server = cls.from_instance(hosting)
        processes = _verify_processes(server, hosting)
        app = server.setup_webserver()
        app.state.verify_processes = processes
        return app
    except NeMoGymError:
        raise
    except (Exception, SystemExit) as error:  # the boundary to an environment's own code
        raise component_error(hosting.instance, hosting.file, error, "set up") from error


def _verify_processes(server: SimpleServer, hosting: Hosting) -> VerifyProcesses | None:
    """With `verify_in: process`, let processes verify. In such a process, `verify` is an ordinary one."""
    if getattr(server.config, "verify_in", None) != "process" or isinstance(hosting.client, NoServers):
        return None
    assert isinstance(server, SimpleResourcesServer)
    check_verify(hosting.instance.name, server.verify)
    processes = VerifyProcesses(hosting.config, hosting.instance.name, server.config.verify_workers)
    object.__setattr__(server, "verify", processes.verify)  # not a field of the model
    return processes


@contextmanager
def _current(client: ServerClient) -> Iterator[None]:
    """Make `ServerClient.load_from_global_config()` return this client. May be exited in another task."""
    before = current_client.get()
    current_client.set(client)
    try:
        yield
    finally:
        if current_client.get() is client:
            current_client.set(before)
