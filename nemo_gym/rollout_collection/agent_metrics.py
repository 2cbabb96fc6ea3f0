"""The aggregate metrics of every agent, and the file they stand in.

The default metrics come from columns, in constant memory; only an environment with metrics of its own is
asked for them, once, with all its rollouts. Where that cannot be, the entry says so in its `note`.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

import nemo_gym
from nemo_gym.client import ServerClient
from nemo_gym.codec import decode_json, encode_json
from nemo_gym.config_types import AggregateMetrics
from nemo_gym.errors import NeMoGymError
from nemo_gym.journal import write_whole
from nemo_gym.metrics import Columns, default_key_metrics
from nemo_gym.types import AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME

logger = logging.getLogger(__name__)

_PATH = "/aggregate_metrics"
_QUESTION_S = 60.0
"""How long an agent may take to say whether it has metrics of its own."""
_COMPUTATION_S = 600.0
"""How long it may take to compute them."""
_LONGEST_REASON = 300
_GROUPS_A_PIECE = 200


@dataclass(frozen=True)
class AgentRollouts:
    """The rollouts of one agent, as whoever computes its metrics needs them."""

    columns: Columns
    records: Callable[[], Iterable[dict[str, Any]]]
    """The whole rollouts, read again from the file; called in a thread, and only where an environment has
    metrics of its own."""


@dataclass(frozen=True)
class Entry:
    """What the file says of one agent."""

    agent: str
    agent_metrics: Mapping[str, Any]
    key_metrics: dict[str, Any]
    groups: Iterable[Mapping[str, Any]]
    columns: Columns | None = None
    """What these metrics come from, where that is all they come from."""
    note: str | None = None


async def write_aggregate_metrics(
    path: Path, agents: Mapping[str, AgentRollouts], client: ServerClient | None
) -> dict[str, dict[str, Any]]:
    """Compute the metrics of every agent and write them; gives the key metrics of each.

    Without a client nobody is asked: all get the default metrics.
    """
    entries = await agent_entries(agents, client)
    await asyncio.to_thread(write_entries, path, entries)
    return {entry.agent: entry.key_metrics for entry in entries}


async def agent_entries(agents: Mapping[str, AgentRollouts], client: ServerClient | None) -> list[Entry]:
    """What is to be said of every agent."""
    return [await _entry(agent, rollouts, client) for agent, rollouts in agents.items()]


def write_entries(path: Path, entries: Iterable[Entry]) -> None:
    write_whole(path, _pieces(entries))


def fingerprint(path: Path, entries: Iterable[Entry]) -> str | None:
    """A text that stays the same as long as the file does and what it would be made of.

    None where there is no file, or where more than this program and the columns goes into it.
    """
    digest = hashlib.sha256(nemo_gym.__version__.encode())
    for entry in entries:
        if entry.columns is None:
            return None
        digest.update(entry.agent.encode("utf-8", "surrogatepass") + b"\0")
        entry.columns.feed(digest.update)
    try:
        about = path.stat()
    except OSError:
        return None
    return f"sha256:{digest.hexdigest()} size:{about.st_size} mtime_ns:{about.st_mtime_ns}"


async def _entry(agent: str, rollouts: AgentRollouts, client: ServerClient | None) -> Entry:
    if client is None:
        return _default_entry(agent, rollouts.columns, "no server was there to ask for its own")
    try:
        if not rollouts.columns or not await _has_own_metrics(client, agent):
            return _default_entry(agent, rollouts.columns)
    except NeMoGymError as error:
        return _default_entry(agent, rollouts.columns, _reason(error))
    body = await asyncio.to_thread(_request_body, rollouts)
    try:
        response = await client.post(agent, _PATH, json=body, timeout=_COMPUTATION_S)
        response.raise_for_status()
        own = AggregateMetrics.model_validate(await response.json())
    except (NeMoGymError, ValueError) as error:
        logger.warning("%s: its own metrics could not be computed, the default ones were: %s", agent, error)
        return _default_entry(agent, rollouts.columns, _reason(error))
    return Entry(agent, own.agent_metrics, own.key_metrics, own.group_level_metrics)


async def _has_own_metrics(client: ServerClient, agent: str) -> bool:
    """Whether the default metrics are not all there is; a server that cannot tell may have some."""
    response = await client.get(agent, _PATH, timeout=_QUESTION_S)
    try:
        return not response.ok or await response.json() != {"own": False}
    except ValueError:
        return True


def _request_body(rollouts: AgentRollouts) -> dict[str, Any]:
    """Every rollout without its transcript; encoded one by one, which takes less memory than the data."""
    stripped = (encode_json(_without_transcript(record)) for record in rollouts.records())
    return {"verify_responses": [orjson.Fragment(data) for data in stripped]}


def _without_transcript(record: Mapping[str, Any]) -> dict[str, Any]:
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, Mapping) else None
    left_out = (RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME)
    kept = {name: value for name, value in record.items() if name not in left_out}
    return kept if usage is None else {**kept, RESPONSE_KEY_NAME: {"usage": usage}}


def _default_entry(agent: str, columns: Columns, missing: str | None = None) -> Entry:
    metrics = columns.statistics()
    keys, groups = default_key_metrics(metrics), columns.groups()
    if missing is None:
        return Entry(agent, metrics, keys, groups, columns)
    note = f"These are the default metrics, without the environment's own: {missing}."
    return Entry(agent, metrics, keys, groups, note=note)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def _pieces(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The file, as `json.dumps(…, indent=2)` would lay it out, some groups at a time."""
    before = b"[\n  "
    for entry in entries:
        yield before
        yield from _entry_pieces(entry)
        before = b",\n  "
    yield b"[]\n" if before == b"[\n  " else b"\n]\n"


def _entry_pieces(entry: Entry) -> Iterator[bytes]:
    head = {
        AGENT_REF_KEY_NAME: {"name": entry.agent},
        **({"note": entry.note} if entry.note is not None else {}),
        "agent_metrics": entry.agent_metrics,
        "key_metrics": entry.key_metrics,
    }
    yield _indented(head, 1).removesuffix(b"\n  }")
    yield b',\n    "group_level_metrics": ['
    before, groups = b"", iter(entry.groups)
    while some := list(islice(groups, _GROUPS_A_PIECE)):
        yield before + _indented(some, 2).removeprefix(b"[").removesuffix(b"\n    ]")
        before = b","
    yield b"\n    ]\n  }" if before else b"]\n  }"


def _indented(value: Any, levels: int) -> bytes:
    """JSON with two blanks a level, to stand below so many levels."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except TypeError:  # what only the slow codec takes, such as a whole number beyond 64 bits
        text = json.dumps(decode_json(encode_json(value)), indent=2).encode()
    return text.replace(b"\n", b"\n" + b"  " * levels)
