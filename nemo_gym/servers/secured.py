"""The access token of a run whose servers listen beyond this machine."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_gym.config import GymConfig
from nemo_gym.environment_variables import ACCESS_TOKEN_VARIABLE, access_token
from nemo_gym.errors import HostingError
from nemo_gym.http.access_token import access_token_file, is_loopback


def with_access_token(config: GymConfig) -> GymConfig:
    """The configuration with a token, if a server in it can be reached from other machines.

    If none is given, a new one is made. Server processes get it with their configuration.
    """
    return _with(config, access_token() or secrets.token_urlsafe(32))


def with_given_access_token(config: GymConfig) -> GymConfig:
    """The same for a server that is started by itself: others must have its token too."""
    token = config.settings.access_token or access_token()
    if token is None and (hosts := beyond_loopback(config)):
        raise HostingError(
            f"servers on {', '.join(hosts)} can be reached from other machines and need an access token; set "
            f"access_token in env.yaml, or the environment variable {ACCESS_TOKEN_VARIABLE}"
        )
    return config if token is None else _with(config, token)


def _with(config: GymConfig, token: str) -> GymConfig:
    if not beyond_loopback(config) or config.settings.access_token:
        return config
    return config.with_layer({"access_token": token})


def beyond_loopback(config: GymConfig) -> list[str]:
    """The hosts in a configuration that can be reached from other machines."""
    hosts = {config.head_server.host, *(server.host for server in config.servers)}
    return sorted(host for host in hosts if not is_loopback(host))


@contextmanager
def published_access_token(config: GymConfig) -> Iterator[str | None]:
    """While the context is open, commands on this machine find the token; yields a line for the user."""
    token, head, hosts = config.settings.access_token, config.head_server, beyond_loopback(config)
    if token is None or not hosts:
        yield None
        return
    about = f"The servers on {', '.join(hosts)} can be reached from other machines and need an access token"
    with access_token_file(head.host, head.port, token) as file:
        yield f"{about}. Commands of this user on this machine find it in {file}."
