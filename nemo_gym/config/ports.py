"""Ports. Every server gets a port that is free when it is chosen, and no two servers get the same."""

import errno
import random
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nemo_gym.config.global_keys import DEFAULT_HOST, PORT_RANGE_HIGH, PORT_RANGE_LOW, GymSettings
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.config.gym_config import GymConfig
    from nemo_gym.config.instances import ServerInstance


def find_open_port(
    low: int = PORT_RANGE_LOW,
    high: int = PORT_RANGE_HIGH,
    disallowed: Collection[int] = (),
    host: str = DEFAULT_HOST,
) -> int:
    """A port in low..high that can be bound now. The search starts at a random port, so that two commands
    that start at the same time rarely choose the same."""
    if not 1 <= low <= high <= 65535:
        raise ConfigError(f"port range {low}..{high}: needs 1 <= port_range_low <= port_range_high <= 65535")
    size = high - low + 1
    start = random.randrange(size)
    for offset in range(size):
        port = low + (start + offset) % size
        if port not in disallowed and _bind_error(host, port) is None:
            return port
    raise ConfigError(
        f"no free port on {host} in {low}..{high} ({len(disallowed)} disallowed); "
        "widen the range with +port_range_low=<port> +port_range_high=<port>"
    )


def assign_ports(config: "GymConfig") -> "GymConfig":
    """`fill_ports`, after a check that all ports in the configuration are free."""
    for server in config.servers:
        if server.port is not None:
            _check_free(server, server.port)
    return fill_ports(config)


def fill_ports(config: "GymConfig") -> "GymConfig":
    """The configuration with a host and a port for every server. A server with several workers also gets
    `worker_ports`, of which the first is its port."""
    pool = _Pool(config.settings)
    for server in config.servers:
        if server.port is not None:
            pool.claim(server, server.port)
    for server in config.servers:
        ports = pool.ports_for(server)
        place: dict[str, object] = {"host": server.host, "port": ports[0]}
        if server.num_workers > 1:
            place["worker_ports"] = ports
        config = config.with_layer({server.name: {server.kind: {server.implementation: place}}})
    return config


@dataclass
class _Pool:
    """The ports that this configuration uses, whether or not a server listens there yet."""

    settings: GymSettings
    taken: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken[self.settings.head_server.port] = "the head server"

    def claim(self, server: "ServerInstance", port: int) -> None:
        """Reserve a port that the configuration sets."""
        if port in self.taken:
            raise ConfigError(
                f"{_place(server, port)} is already used by {self.taken[port]}; {_change(server)}"
            )
        self.taken[port] = server.name

    def ports_for(self, server: "ServerInstance") -> list[int]:
        ports = [] if server.port is None else [server.port]
        while len(ports) < server.num_workers:
            port = self._free(server.host)
            self.taken[port] = server.name
            ports.append(port)
        return ports

    def _free(self, host: str) -> int:
        settings = self.settings
        disallowed = {*self.taken, *settings.disallowed_ports}
        return find_open_port(settings.port_range_low, settings.port_range_high, disallowed, host)


def _check_free(server: "ServerInstance", port: int) -> None:
    reason = _bind_error(server.host, port)
    if reason == errno.EADDRINUSE:
        holder = f"find it with `lsof -i :{port}`"
        raise ConfigError(
            f"{_place(server, port)} is in use by another process; {holder}, or {_change(server)}"
        )
    if reason == errno.EACCES:
        raise ConfigError(f"{_place(server, port)}: permission denied; {_change(server)}, above 1023")


def _place(server: "ServerInstance", port: int) -> str:
    return f"{server.name}: port {server.host}:{port}"


def _change(server: "ServerInstance") -> str:
    return f"set another with +{server.path}.port=<port>"


def _bind_error(host: str, port: int) -> int | None:
    """The errno of trying to listen on this port; None if it works."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f"host {host!r}: {error}; set default_host or the server's host to an address"
        ) from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do, so that old connections do not block the port
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"host {host!r} is not an address of this machine; set another host"
                ) from error
            return error.errno
    return None
