"""`ng_status`."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nemo_gym.cli.command import Command
from nemo_gym.cli.output import say, say_json
from nemo_gym.client import base_url
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError, HeadServerUnreachableError
from nemo_gym.http import fetch_text
from nemo_gym.http.access_token import find_access_token
from nemo_gym.rollout_collection.display.screen import waiting_text
from nemo_gym.rollout_collection.recording.foreign_data import counts_of, number_of, records_of, text_of
from nemo_gym.rollout_collection.recording.waiting import running_collections, with_server_activities
from nemo_gym.servers.head import ServerStatus
from nemo_gym.terminal import one_line, table
from nemo_gym.types import HEAD_SERVER_KEY_NAME


class StatusConfig(BaseNeMoGymCLIConfig):
    json_output: bool = False
    """Print one JSON object instead of tables."""
    output_jsonl_fpath: str | None = None
    """Output file of the running collection to show. Default: all collections that write into the working
    directory or its folder `results`."""


def run(config: GymConfig, options: StatusConfig) -> int:
    head = base_url(config.head_server.host, config.head_server.port)
    token = find_access_token(config.head_server.host, config.head_server.port, config.settings.access_token)
    collections = running_collections(options.output_jsonl_fpath)
    try:
        servers = _servers(head, token)
    except HeadServerUnreachableError as error:
        if not collections and options.output_jsonl_fpath is not None:
            raise ConfigError(
                f"no running collection writes {options.output_jsonl_fpath}; the manifest and the failures "
                "file next to it show how the last one ended"
            ) from error
        if not collections and any(key.startswith(HEAD_SERVER_KEY_NAME) for key in config.texts):
            raise HeadServerUnreachableError(
                f"{error}. No running collection writes into this folder or its folder results either"
            ) from error
        if not collections and not options.json_output:
            say(_nothing_runs(error))
            return 0
        servers = []
    urls = [server.url for server in servers if server.status == "ready"]
    collections = [
        with_server_activities(one, urls, token) if one.get("served") else one for one in collections
    ]
    if options.json_output:
        shown = [server.model_dump() for server in servers]
        say_json({"servers": shown, "collections": collections})
    else:
        if servers:
            say(f"head server {head}")
            say(status_table(servers))
        for collection in collections:
            say(collection_text(collection))
    return 0 if all(server.status == "ready" for server in servers) else 1


def _nothing_runs(error: HeadServerUnreachableError) -> str:
    reason = str(error).partition(";")[0]
    return (
        f"Nothing is running: {reason}; no collection writes into this folder or its folder results "
        "(for one elsewhere: +output_jsonl_fpath=<path>)"
    )


def _servers(head: str, token: str | None) -> list[ServerStatus]:
    page = fetch_text(f"{head}/server_instances", access_token=token)
    try:
        return TypeAdapter(list[ServerStatus]).validate_json(page)
    except ValidationError as error:
        raise HeadServerUnreachableError(
            f"the program that listens at {head} is not a head server; set the address with "
            "+head_server.host=… +head_server.port=…"
        ) from error


def status_table(servers: list[ServerStatus]) -> str:
    rows = [(one.name, one.kind, one.url, one.status, one.pid or "", one.restarts) for one in servers]
    return table(("name", "kind", "address", "status", "pid", "restarts"), rows)


def collection_text(status: dict[str, Any]) -> str:
    """A running collection: its progress and its oldest rollouts. The status may have any content."""
    process = f"process {text_of(status, 'pid')} on {text_of(status, 'host')}"
    where = one_line(f"collection into {text_of(status, 'output')} ({process})")
    if "done" not in status:
        return f"{where}: preparing"
    counts = f"{text_of(status, 'done')}/{text_of(status, 'total')} done, {text_of(status, 'failed')} failed"
    rate = f"{text_of(status, 'in_flight')} in flight, {_rounded(status, 'per_minute')}/min"
    lines = [one_line(f"{where}: {counts}, {rate}")]
    if waiting := counts_of(status, "waiting"):
        lines.append(f"waiting: {waiting_text(waiting)}")
    if limits := counts_of(status, "limits"):
        lines.append(
            one_line("limits: " + ", ".join(f"{origin} {limit}" for origin, limit in limits.items()))
        )
    rows = [
        (
            text_of(one, "rollout"),
            text_of(one, "agent"),
            f"{_rounded(one, 'seconds')} s",
            text_of(one, "waits_for"),
        )
        for one in records_of(status, "oldest")
    ]
    return "\n".join([*lines, table(("rollout", "agent", "age", "waiting for"), rows)] if rows else lines)


def _rounded(data: Mapping[str, Any], key: str) -> str:
    number = number_of(data, key)
    return "?" if number is None else f"{number:.0f}"


COMMAND = Command(
    "status",
    StatusConfig,
    run,
    "ng_status +output_jsonl_fpath=results/calculator.jsonl",
    other_key="+head_server.port=11001",
)
