"""The aggregate metrics of every agent, and the file that holds them.

The default metrics are computed from columns, in constant memory. Only an environment with metrics of its own
is asked for them, once, with all its rollouts. If that fails, the `note` of the entry says so.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from nemo_gym.metrics import Columns, GroupTable, Summary, default_key_metrics, summarize
from nemo_gym.terminal import one_line
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

logger = logging.getLogger(__name__)

_PATH = "/aggregate_metrics"
_QUESTION_S = 60.0
"""Time for an agent to say whether it has metrics of its own."""
_COMPUTATION_S = 600.0
"""Time for an agent to compute them."""
_LONGEST_REASON = 300
_GROUPS_A_PIECE = 200
NO_SERVER = "no server was available; compute them with ng_aggregate_rollouts '+config_paths=[…]'"
_FORMULAS = b"2"
"""Increase it when the program writes a different file for the same rollouts."""


@dataclass(frozen=True)
class AgentRollouts:
    """The rollouts of one agent, for the computation of its metrics."""

    columns: Columns
    records: Callable[[], Iterable[dict[str, Any]]]
    """The whole rollouts, read again from the file. Called in a thread, and only if an environment has
    metrics of its own."""
    planned: int | None = None
    """How many there should be; None if that is not known."""
    is_asked: bool = True
    """Whether to ask the agent first if it has metrics of its own; else it always computes them."""


@dataclass(frozen=True)
class Entry:
    """The metrics of one agent, as written to the file."""

    agent: str
    summary: Summary
    agent_metrics: Mapping[str, Any]
    key_metrics: dict[str, Any]
    groups: Iterable[Mapping[str, Any]] | Columns
    """The metrics of each task; columns if they are computed from those alone."""
    columns: Columns | None = None
    """The columns, if all these metrics are computed from them."""
    note: str | None = None


async def write_aggregate_metrics(
    path: Path, agents: Mapping[str, AgentRollouts], client: ServerClient | None
) -> list[Entry]:
    """Compute the metrics of every agent, write them, and return what was written.

    Without a client all agents get the default metrics.
    """
    entries = await agent_entries(agents, client)
    await asyncio.to_thread(write_entries, path, entries)
    return entries


async def agent_entries(
    agents: Mapping[str, AgentRollouts], client: ServerClient | None, why_unasked: str = NO_SERVER
) -> list[Entry]:
    """The metrics of every agent; `why_unasked` is the reason if there is no client."""
    return [await _entry(agent, rollouts, client, why_unasked) for agent, rollouts in agents.items()]


def write_entries(path: Path, entries: Iterable[Entry]) -> None:
    write_whole(path, _one_ahead(_pieces(entries)))


def fingerprint(path: Path, entries: Iterable[Entry]) -> str | None:
    """A text that changes when the file changes, or the numbers that it is computed from change.

    None if there is no file, or if it depends on more than this program and the columns.
    """
    digest = hashlib.sha256(nemo_gym.__version__.encode() + _FORMULAS)
    for entry in entries:
        if entry.columns is None:
            return None
        digest.update(f"{entry.agent}\0{entry.summary.planned}\0".encode("utf-8", "surrogatepass"))
        entry.columns.feed(digest.update)
    try:
        about = path.stat()
    except OSError:
        return None
    return f"sha256:{digest.hexdigest()} size:{about.st_size} mtime_ns:{about.st_mtime_ns}"


async def _entry(agent: str, rollouts: AgentRollouts, client: ServerClient | None, why_unasked: str) -> Entry:
    if client is None:
        return await _default_entry(agent, rollouts, why_unasked)
    try:
        if not rollouts.columns or (rollouts.is_asked and not await _has_own_metrics(client, agent)):
            return await _default_entry(agent, rollouts)
    except NeMoGymError as error:
        return await _default_entry(agent, rollouts, _reason(error))
    try:
        body = await asyncio.to_thread(_request_body, rollouts)
        response = await client.post(agent, _PATH, json=body, timeout=_COMPUTATION_S)
        response.raise_for_status()
        own = AggregateMetrics.model_validate(await response.json())
    except (NeMoGymError, ValueError, OSError) as error:
        reason = _reason(error)
        logger.warning(
            "%s cannot compute its own metrics; only the default metrics are written: %s", agent, reason
        )
        return await _default_entry(agent, rollouts, reason)
    summary = await asyncio.to_thread(summarize, agent, rollouts.columns, rollouts.planned)
    key_metrics = own.key_metrics
    if key_metrics == default_key_metrics(own.agent_metrics):  # the environment has not selected them
        key_metrics = default_key_metrics(own.agent_metrics, rollouts.columns.copied_names())
    return Entry(agent, summary, own.agent_metrics, key_metrics, own.group_level_metrics)


async def _has_own_metrics(client: ServerClient, agent: str) -> bool:
    """Whether the agent has more than the default metrics; True if it does not report that."""
    response = await client.get(agent, _PATH, timeout=_QUESTION_S)
    try:
        return not response.ok or await response.json() != {"own": False}
    except ValueError:
        return True


def _request_body(rollouts: AgentRollouts) -> dict[str, Any]:
    """Every rollout without its transcript, encoded one by one: bytes take less memory than objects."""
    stripped = (encode_json(_without_transcript(record)) for record in rollouts.records())
    return {"verify_responses": [orjson.Fragment(data) for data in stripped]}


def _without_transcript(record: Mapping[str, Any]) -> dict[str, Any]:
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, Mapping) else None
    left_out = (RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME)
    kept = {name: value for name, value in record.items() if name not in left_out}
    return kept if usage is None else {**kept, RESPONSE_KEY_NAME: {"usage": usage}}


async def _default_entry(agent: str, rollouts: AgentRollouts, missing: str | None = None) -> Entry:
    columns = rollouts.columns
    summary, metrics = await asyncio.gather(
        asyncio.to_thread(summarize, agent, columns, rollouts.planned), asyncio.to_thread(columns.metrics)
    )
    keys = default_key_metrics(metrics, columns.copied_names())
    if missing is None:
        return Entry(agent, summary, metrics, keys, columns, columns)
    note = f"These are the default metrics, without the environment's own: {missing}."
    return Entry(agent, summary, metrics, keys, columns, note=note)


def _reason(error: Exception) -> str:
    text = one_line(str(error)) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"


def _one_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; while one is written, the next is computed."""
    with ThreadPoolExecutor(1) as maker:
        upcoming = maker.submit(next, pieces, None)
        while (piece := upcoming.result()) is not None:
            upcoming = maker.submit(next, pieces, None)
            yield piece


def _pieces(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The file as `json.dumps(…, indent=2)` formats it, some groups at a time."""
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
        **({"coverage": entry.summary.coverage()} if entry.summary.missing else {}),
        "agent_metrics": entry.agent_metrics,
        "key_metrics": entry.key_metrics,
    }
    yield _indented(head, 1).removesuffix(b"\n  }")
    yield b',\n    "group_level_metrics": ['
    before = b""
    for piece in _group_pieces(entry.groups):
        yield before + piece
        before = b","
    yield b"\n    ]\n  }" if before else b"]\n  }"


def _group_pieces(source: Iterable[Mapping[str, Any]] | Columns) -> Iterator[bytes]:
    """Some groups at a time, separated by commas."""
    if isinstance(source, Columns):
        for table in source.group_tables():
            yield (
                _table_piece(table)
                if table.labels and table.is_complete
                else _groups_piece(list(table.groups()))
            )
        return
    groups = iter(source)
    while some := list(islice(groups, _GROUPS_A_PIECE)):
        yield _groups_piece(some)


def _groups_piece(groups: list[Mapping[str, Any]]) -> bytes:
    return _indented(groups, 2).removeprefix(b"[").removesuffix(b"\n    ]")


def _table_piece(table: GroupTable) -> bytes:
    """The same for a table without missing values: each row fills in a template that all groups share."""
    labels = [encode_json(label).replace(b"%", b"%%") for label in [TASK_INDEX_KEY_NAME, *table.labels]]
    group = b"\n      {\n        " + b",\n        ".join(label + b": %b" for label in labels) + b"\n      }"
    rows = orjson.dumps(table.values, option=orjson.OPT_SERIALIZE_NUMPY)[2:-2].split(b"],[")
    return b",".join(
        [group % (b"%d" % task, *row.split(b",")) for task, row in zip(table.tasks, rows, strict=True)]
    )


def _indented(value: Any, levels: int) -> bytes:
    """JSON indented by two spaces per level, below this many levels."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except TypeError:  # data that only the slow codec accepts, such as whole numbers beyond 64 bits
        text = json.dumps(decode_json(encode_json(value)), indent=2).encode()
    return text.replace(b"\n", b"\n" + b"  " * levels)
