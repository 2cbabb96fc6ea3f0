"""The access token of servers that listen beyond this machine: how it is sent, and where a caller finds it.

Invariant: the token is in no log, no command line and no response; its file can be read by its owner only.
"""

import ipaddress
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nemo_gym.environment_variables import ACCESS_TOKEN_VARIABLE, access_token, user_cache_dir

ACCESS_HEADER = "x-nemo-gym-access-token"
WILDCARDS = ("0.0.0.0", "::")
HOW_TO_PASS = (
    f"send the access token of its ng_run in the header {ACCESS_HEADER}; commands find it on the machine of "
    f"that ng_run, elsewhere set access_token in env.yaml or the environment variable {ACCESS_TOKEN_VARIABLE}"
)


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this host can be reached from this machine only."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[0])).is_loopback for *_, address in found)


def find_access_token(head_host: str, head_port: int, configured: str | None = None) -> str | None:
    """The token for the servers behind a head server: configured, or that of an ng_run on this machine."""
    token = configured or access_token()
    if token is None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(_file(head_port).read_text())
            if head_host == found["host"] or head_host in WILDCARDS or is_loopback(head_host):
                token = str(found["token"])
    return token


@contextmanager
def access_token_file(head_host: str, head_port: int, token: str) -> Iterator[Path]:
    """A file from which commands of this user on this machine take the token, while the context is open."""
    file = _file(head_port)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as target:
        json.dump({"host": head_host, "token": token}, target)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def _file(head_port: int) -> Path:
    # The folder may be shared between machines.
    return user_cache_dir() / "access" / f"{socket.gethostname()}_{head_port}.json"
