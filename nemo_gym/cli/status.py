"""`ng_status`."""

import json

from pydantic import TypeAdapter, ValidationError

from nemo_gym.cli.command import Command
from nemo_gym.cli.table import table
from nemo_gym.client import base_url
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import HeadServerUnreachableError
from nemo_gym.http import fetch_text
from nemo_gym.servers.head import ServerStatus


class StatusConfig(BaseNeMoGymCLIConfig):
    json_output: bool = False
    """Print the head server's list as JSON instead of a table."""


def run(config: GymConfig, options: StatusConfig) -> int:
    head = base_url(config.head_server.host, config.head_server.port)
    page = fetch_text(f"{head}/server_instances")
    try:
        servers = TypeAdapter(list[ServerStatus]).validate_json(page)
    except ValidationError as error:
        raise HeadServerUnreachableError(
            f"what answers at {head} is no head server; name its address with "
            "+head_server.host=… +head_server.port=…"
        ) from error
    if options.json_output:
        print(json.dumps([server.model_dump() for server in servers], indent=2))
    else:
        print(f"head server {head}")
        print(status_table(servers))
    return 0 if all(server.status == "ready" for server in servers) else 1


def status_table(servers: list[ServerStatus]) -> str:
    rows = [(one.name, one.kind, one.url, one.status, one.pid or "", one.restarts) for one in servers]
    return table(("name", "kind", "address", "status", "pid", "restarts"), rows)


COMMAND = Command("status", StatusConfig, run, "ng_status")
