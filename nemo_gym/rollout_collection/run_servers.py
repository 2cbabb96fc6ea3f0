"""The servers of a run: hosted in this process, behind a head server, or already open in the caller."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import aiohttp

from nemo_gym.client import ServerClient, base_url
from nemo_gym.config import GymConfig
from nemo_gym.config.hints import did_you_mean
from nemo_gym.config.instances import block_of, instance_names
from nemo_gym.config.load import Sources, load_sources
from nemo_gym.config.overrides import Overrides
from nemo_gym.config.plain_data import plain_data
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, HeadServerRefusedError, HeadServerUnreachableError
from nemo_gym.http import GlobalAIOHTTPAsyncClientConfig, is_global_aiohttp_client_setup, request
from nemo_gym.http.transport_choice import CLIENT_SETTINGS, apply_client_settings, set_pool_size
from nemo_gym.launch import host_embedded
from nemo_gym.launch.check import check_settings
from nemo_gym.launch.shared import host_shared
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.recording.manifest import differences, server_settings
from nemo_gym.types import CONFIG_PATHS_KEY_NAME, POLICY_BASE_URL_KEY_NAME, POLICY_MODEL_NAME_KEY_NAME

Hosting = Literal["auto", "embedded", "served"]
_POLICY_KEYS = (POLICY_BASE_URL_KEY_NAME, POLICY_MODEL_NAME_KEY_NAME)
_HEAD_CHECK_S = 5.0
_EMBEDDED_HINT = "pass +hosting=embedded to host the servers in this process"


@dataclass(frozen=True)
class Servers:
    """The servers of a run. They may not be running yet."""

    values: Mapping[str, Any]
    """Their configuration, as plain data."""
    to_host: GymConfig | None = None
    """The servers to host; None if they are running already."""
    elsewhere: frozenset[str] = frozenset()
    """Names of servers in `to_host` that already run in processes of their own."""
    running: ServerClient | None = None
    notes: tuple[str, ...] = ()
    """What the user should know about the choice of these servers."""

    def check_settings(self) -> None:
        """Refuse settings that a server would refuse at its start, as far as they can be checked before."""
        if self.to_host is not None:
            for instance in self.to_host.servers:
                check_settings(self.to_host, instance)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ServerClient]:
        """A client of the servers, which run while this is open."""
        if self.to_host is not None:
            async with host_embedded(self.to_host, elsewhere=self.elsewhere) as client:
                yield client
        else:
            assert self.running is not None
            yield self.running

    @asynccontextmanager
    async def shared(self) -> AsyncIterator["Servers"]:
        """The servers for several processes; those that the processes share run while this is open."""
        if self.to_host is None:
            yield self
            return
        async with host_shared(self.to_host) as shared:
            yield replace(self, to_host=shared.config, elsewhere=shared.names)

    @property
    def where(self) -> str:
        """Where the servers are hosted, for messages."""
        if self.to_host is not None or (self.running is not None and self.running.is_local):
            return "hosted in this process (embedded)"
        head = self.running.head_server_config if self.running is not None else None
        return f"served behind {base_url(head.host, head.port)}" if head is not None else "already open"

    @property
    def process_urls(self) -> list[str]:
        """The address of each server process; empty if the servers are in this process."""
        values, names = self.values, list(instance_names(self.values))
        if self.to_host is not None:
            values, names = self.to_host.data, list(self.elsewhere)
        elif self.running is None or self.running.is_local:
            return []
        blocks = filter(None, (block_of(values, name) for name in names))
        return [
            base_url(block.get("host", "127.0.0.1"), port)
            for block in blocks
            for port in block.get("worker_ports") or [block.get("port")]
            if port
        ]

    @property
    def head_check(self) -> Callable[[], Awaitable[str | None]] | None:
        """Asks the head server; returns its address if it refuses connections. None if there is none."""
        if self.to_host is not None or self.running is None or self.running.is_local:
            return None
        head = self.running.head_server_config
        if head is None:
            return None
        address = base_url(head.host, head.port)

        async def check() -> str | None:
            try:
                await request("GET", address, timeout_s=_HEAD_CHECK_S)
            except TimeoutError:
                return None  # it is busy
            except aiohttp.ClientConnectionError:
                return address
            return None

        return check

    def config(self) -> GymConfig:
        """The whole configuration, for worker processes."""
        if self.to_host is not None:
            return self.to_host
        # The head server masks the token. Its files have been read; they need not be on this machine.
        values = {**self.values, "access_token": self.access_token, CONFIG_PATHS_KEY_NAME: []}
        return load_sources(Sources((), Overrides(), None, roots=(), defaults=values))

    @property
    def access_token(self) -> str | None:
        """What servers in other processes require, if they listen beyond their machine."""
        if self.to_host is not None:
            return self.to_host.settings.access_token
        return self.running.access_token if self.running is not None else None

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents."""
        values = self.values
        return tuple(name for name in instance_names(values) if "responses_api_agents" in values[name])

    def with_only_agent(self, config: RolloutCollectionConfig) -> RolloutCollectionConfig:
        """The configuration with the only agent, unless it names one or there are several."""
        if config.agent_name is not None or len(self.agents) != 1:
            return config
        return config.model_copy(update={"agent_name": self.agents[0]})

    def check_agents(self, agents: Mapping[str, int]) -> None:
        """Refuse agents that are not among the servers."""
        missing = [agent for agent in agents if agent not in self.agents]
        if missing:
            hint = did_you_mean(missing[0], self.agents)
            hint += "" if hint.endswith("?") else "."
            raise ConfigError(
                f"no agent {', '.join(map(repr, missing))} among the servers {self.where}; {hint} "
                "Choose one with +agent_name=<name>, or pass the file that defines it: '+config_paths=[…]'"
            )


def served_by(client: ServerClient) -> Servers:
    return Servers(_plain(client.global_config_dict), running=client)


def servers_in_sight(config: GymConfig, hosting: Hosting) -> Servers | None:
    """The servers of a command line, running or not; None if there are none."""
    try:
        return choose_servers(config, hosting)
    except HeadServerUnreachableError:
        return _to_host(config)


def _to_host(config: GymConfig) -> Servers | None:
    return Servers(config.data, to_host=config) if config.servers else None


def choose_servers(config: GymConfig, hosting: Hosting) -> Servers:
    """The servers of a command line. Running servers that do not fit never stop one that can host its own,
    unless it asks for running ones."""
    embedded = _to_host(config)
    if hosting == "embedded":
        if embedded is None:
            raise ConfigError("there are no servers to host; pass their files with '+config_paths=[…]'")
        return embedded
    try:
        return _fitting_servers(config)
    except _UnfitServersError as error:
        if hosting == "auto" and embedded is not None:
            return replace(embedded, notes=(f"The servers are hosted in this process: {error}",))
        raise ConfigError(
            f"{error}\nStop that ng_run, use the same configuration, or {_EMBEDDED_HINT}"
        ) from None
    except HeadServerUnreachableError as error:
        if hosting == "auto" and embedded is not None:
            return replace(embedded, notes=_notes_about(config, error))
        missing = [
            *(["+hosting=embedded"] if hosting == "served" else []),
            *(["'+config_paths=[…]'"] if embedded is None else []),
        ]
        raise HeadServerUnreachableError(
            f"{error}; or host the servers in this process with {' '.join(missing)}"
        ) from error


class _UnfitServersError(ConfigError):
    """The running servers are not those of the command line."""


def _notes_about(config: GymConfig, error: HeadServerUnreachableError) -> tuple[str, ...]:
    """Why a program at the head server's address is not used; nothing if there is none."""
    reason = getattr(error.__cause__, "os_error", error.__cause__)
    if isinstance(reason, ConnectionRefusedError):
        return ()
    head = base_url(config.head_server.host, config.head_server.port)
    if isinstance(error, HeadServerRefusedError):
        return (f"The servers are hosted in this process: {error}",)
    return (f"The servers are hosted in this process: the program at {head} is not a head server of ng_run",)


def _fitting_servers(config: GymConfig) -> Servers:
    """The running servers, if they are those of the command line."""
    client = ServerClient.load_from_global_config(
        config.head_server, access_token=config.settings.access_token
    )
    served = served_by(client)
    _refuse_other_servers(config, served)
    _set_up_http(client, config.data)
    return served


def _refuse_other_servers(config: GymConfig, served: Servers) -> None:
    agent = config.data.get("agent_name")
    wanted = [*instance_names(config.data), *([agent] if config.servers and agent else [])]
    missing = [str(name) for name in wanted if name not in instance_names(served.values)]
    if missing:
        raise _UnfitServersError(f"the servers {served.where} do not include {', '.join(missing)}")
    asked = server_settings(config.data, with_endpoints=True)
    have = server_settings(served.values, with_endpoints=True)
    for key in _POLICY_KEYS:  # settings of the command line must not be ignored silently
        if key in config.texts and key in served.values:
            asked[key], have[key] = config.data[key], served.values[key]
    lines = differences({key: have[key] for key in asked if key in have}, asked)
    if lines:
        shown = "".join(f"\n  {line}" for line in lines[:10])
        raise _UnfitServersError(
            f"the servers {served.where} differ from the configuration of this command "
            f"('was' is the running server, 'is' is this command):{shown}"
        )


def setup_client(
    head_server_config: BaseServerConfig | None, settings: Mapping[str, Any] = MappingProxyType({})
) -> ServerClient:
    """A client of the servers open around the caller, else of those of a head server.

    Sets the sizes of the shared HTTP client from their configuration, unless they are set already. Its other
    settings are those of the caller, else those of the servers.
    """
    client = ServerClient.load_from_global_config(
        head_server_config, access_token=settings.get("access_token")
    )
    _set_up_http(client, settings)
    return client


def _set_up_http(client: ServerClient, settings: Mapping[str, Any]) -> None:
    fields = GlobalAIOHTTPAsyncClientConfig.model_fields
    sizes = {name: client.global_config_dict[name] for name in fields if name in client.global_config_dict}
    if sizes and not is_global_aiohttp_client_setup():
        set_pool_size(GlobalAIOHTTPAsyncClientConfig.model_validate(sizes))
    theirs = client.global_config_dict
    given = {
        name: values[name] for values in (theirs, settings) for name in CLIENT_SETTINGS if name in values
    }
    apply_client_settings(given)


def _plain(values: Mapping[str, Any]) -> Mapping[str, Any]:
    from omegaconf import DictConfig, OmegaConf  # slow to load: only when needed

    if isinstance(values, DictConfig):
        data: dict[str, Any] = OmegaConf.to_container(values, resolve=True)  # type: ignore[assignment]  # str keys
        return data
    plain: dict[str, Any] = plain_data(values)
    return plain
