"""Export of rollouts: to Parquet, to JSONL with a chat-style `output`, and from Parquet back to JSONL.

Invariant: an output file is complete or unchanged. At most one batch of rows is in memory. A value that a
column cannot hold is null there; `rollout_json` has the original line.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from nemo_gym import __version__
from nemo_gym.analysis.transcript import OUTPUT_KEY_NAME, Item, chat_messages, output_items, transcript
from nemo_gym.codec import encode_json
from nemo_gym.config.roots import expand
from nemo_gym.errors import ConfigError, InputError, JournalError
from nemo_gym.extras import load_extra
from nemo_gym.journal import Line, make_parent, new_file
from nemo_gym.records import SKIP_HINT, BadLines, Key, Record, checked_rollout, read_records, refuse_repeated
from nemo_gym.types import AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

TRANSCRIPT = "transcript"
ROLLOUT_JSON = "rollout_json"
OWN_NAMES = ("task_index", "rollout_index", "agent", TRANSCRIPT, ROLLOUT_JSON)
TAKEN_SUFFIX = "_field"
"""Appended to the name of a field that is one of these."""
VERSION_KEY = "nemo_gym_version"
"""Key in the metadata of a Parquet file."""

_PARQUET, _JSONL = ".parquet", ".jsonl"
_BATCH_ROWS = 4096
_BATCH_BYTES = 16 << 20
"""Bytes of input per batch: long rollouts make batches of fewer rows."""
_BACK_ROWS = 256
_CONTENT = {RESPONSE_KEY_NAME, OUTPUT_KEY_NAME, "reward"}
_RUN_KEYS = {TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, AGENT_REF_KEY_NAME}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Exported(NamedTuple):
    """What was written."""

    rollouts: int
    columns: int | None
    """None for JSONL, which has no columns."""


def export_rollouts(
    input_fpath: str | Path,
    output_fpath: str | Path,
    bad_lines: BadLines | None = None,
    *,
    include_json: bool = True,
) -> Exported:
    """Write the rollouts of one file to another. The file name extensions decide the formats.

    `bad_lines` decides about lines that are not rollouts and lines that repeat a key.
    `include_json=False` leaves out the Parquet column with the whole line.
    """
    source, target = expand(input_fpath), expand(output_fpath)
    formats = (_format(source), _format(target))
    _refuse_target(target, source)
    bad_lines = BadLines() if bad_lines is None else bad_lines
    if formats == (_JSONL, _PARQUET):
        return _to_parquet(source, target, bad_lines, include_json)
    if formats == (_JSONL, _JSONL):
        return _to_older_jsonl(source, target, bad_lines)
    if formats == (_PARQUET, _JSONL):
        return _back_to_jsonl(source, target)
    raise ConfigError(f"{source}: this is already a Parquet file; choose an output that ends in {_JSONL}")


class ExportedLine(NamedTuple):
    """One line to export."""

    line: Line
    record: Record
    key: Key | None
    """None for the older format, in which rollouts have neither keys nor agents."""
    agent: str | None


def _lines(path: Path, bad_lines: BadLines) -> Iterator[ExportedLine]:
    """Every rollout of a file. A line that repeats a key is a bad line."""
    first_lines: dict[int, int] = {}
    for line, record in read_records(path, bad_lines):
        if OUTPUT_KEY_NAME in record and _RUN_KEYS.isdisjoint(record):
            yield ExportedLine(line, record, None, None)
            continue
        try:
            rollout = checked_rollout(path, line, record)
            if _CONTENT.isdisjoint(record):
                raise InputError(
                    f"{path}:{line.number}: not a rollout: it has neither a response nor a reward; "
                    f"give a rollouts file, {SKIP_HINT}"
                )
            refuse_repeated(path, rollout, first_lines)
        except InputError as error:
            bad_lines.take(error)
        else:
            yield ExportedLine(*rollout)


def _index(rollout: ExportedLine, part: int) -> int | None:
    return None if rollout.key is None else rollout.key[part]


def _format(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in (_PARQUET, _JSONL):
        raise ConfigError(
            f"{path}: unknown type {ending or '(none)'}; give a file that ends in {_PARQUET} or {_JSONL}"
        )
    return ending


def _refuse_target(target: Path, source: Path) -> None:
    if not os.path.exists(target):
        return
    if os.path.exists(source) and os.path.samefile(target, source):
        raise ConfigError(f"{target}: output and input are the same file; choose another output file")
    if not os.path.isfile(target):
        raise ConfigError(f"{target}: not a regular file; choose another output file")


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file for the new content, which replaces the target once everything is written."""
    try:
        make_parent(target)
        with new_file(target.resolve()) as file:
            yield file
    except JournalError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
        raise ConfigError(
            f"cannot write {target}: {reason or error.__cause__}; free disk space or choose another file"
        ) from error


def _to_older_jsonl(source: Path, target: Path, bad_lines: BadLines) -> Exported:
    count = 0
    with _replacing(target) as file:
        for rollout in _lines(source, bad_lines):
            file.write(_older_line(rollout) + b"\n")
            count += 1
    return Exported(count, None)


def _older_line(rollout: ExportedLine) -> bytes:
    """The line with an `output` of chat messages appended; unchanged if it has an `output` already."""
    if OUTPUT_KEY_NAME in rollout.record:
        return rollout.line.data
    head = _line_text(rollout).rstrip().removesuffix("}").encode()
    return head + b',"output":' + encode_json(chat_messages(output_items(rollout.record))) + b"}"


def _line_text(rollout: ExportedLine) -> str:
    """The line as it is in the file; a line that is not valid UTF-8 is encoded again, in ASCII."""
    try:
        return rollout.line.data.decode()
    except UnicodeDecodeError:
        return json.dumps(rollout.record)


def _back_to_jsonl(source: Path, target: Path) -> Exported:
    pa = _pyarrow()
    if not source.is_file():
        raise InputError(f"{source}: no such file; check the name")
    count = 0
    with _reading(source, pa), pa.parquet.ParquetFile(source) as table:
        _refuse_without_json(source, table.schema_arrow, pa)
        with _replacing(target) as file:
            for batch in _batches(source, table, pa):
                for text in batch:
                    count += 1
                    if text is None:
                        raise InputError(f"{source}: row {count} has no {ROLLOUT_JSON}; export it again")
                    file.write(text.encode() + b"\n")
    return Exported(count, None)


def _refuse_without_json(source: Path, schema: Any, pa: Any) -> None:
    texts = (pa.string(), pa.large_string(), pa.string_view())
    if ROLLOUT_JSON not in schema.names or schema.field(ROLLOUT_JSON).type not in texts:
        raise InputError(
            f"{source}: no column {ROLLOUT_JSON}, which holds the complete rollouts; export them again "
            "without +include_json=false"
        )


def _batches(source: Path, table: Any, pa: Any) -> Iterator[list[str | None]]:
    """The lines of the file in batches. Errors here are errors of reading, not of writing."""
    with _reading(source, pa):
        for batch in table.iter_batches(batch_size=_BACK_ROWS, columns=[ROLLOUT_JSON]):
            yield batch.column(0).to_pylist()


@contextmanager
def _reading(source: Path, pa: Any) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"{source}: cannot be read as Parquet: {reason}; give a file that ng export wrote"
        ) from error


def _to_parquet(source: Path, target: Path, bad_lines: BadLines, include_json: bool) -> Exported:
    """Reads the source twice: first for the fields and their types, then for the rows."""
    pa = _pyarrow()
    survey = Survey()
    for rollout in _lines(source, bad_lines):
        survey.take(rollout.record)
    columns = _columns(survey, include_json)
    again = _lines(source, BadLines(bad_lines.are_skipped))
    with _replacing(target) as file:
        count = _write_parquet(file, columns, islice(again, survey.count), pa)
        if count < survey.count:
            raise InputError(f"{source}: the file became shorter while it was read; export it again")
    return Exported(count, len(columns))


def _pyarrow() -> Any:
    load_extra("pyarrow.parquet", "export", "a Parquet file")
    return load_extra("pyarrow", "export", "a Parquet file")


_BOOL, _INT, _FLOAT, _TEXT, _OTHER = 1, 2, 4, 8, 16
_KINDS = {bool: _BOOL, int: _INT, float: _FLOAT, str: _TEXT, type(None): 0}
ColumnType = Literal["int64", "double", "bool", "string", "transcript"]


@dataclass
class Survey:
    """The types of values that the fields of a file have."""

    count: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Field to the types of its values as a bit set, in the order in which fields first appear."""

    def take(self, record: Record) -> None:
        self.count += 1
        kinds = self.kinds
        for name, value in _fields(record).items():
            kinds[name] = kinds.get(name, 0) | _kind(value)

    def numbers(self) -> dict[str, ColumnType]:
        """Fields with a number in at least one rollout."""
        found = {name: kinds & (_BOOL | _INT | _FLOAT) for name, kinds in self.kinds.items()}
        return {name: _number_type(kinds) for name, kinds in found.items() if kinds}

    def texts(self) -> dict[str, ColumnType]:
        """Fields whose values are always strings."""
        return {name: "string" for name, kinds in self.kinds.items() if kinds == _TEXT}


def _fields(record: Record) -> Record:
    """The fields of a rollout and of its token usage. The former win where names are equal."""
    fields = dict(record)
    for name in (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME):
        fields.pop(name, None)
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, dict) else None
    if isinstance(usage, dict):
        for name, value in usage.items():
            if isinstance(value, int | float):
                fields.setdefault(name, value)
    return fields


def _kind(value: Any) -> int:
    kind = _KINDS.get(type(value), _OTHER)
    return _FLOAT if kind == _INT and not _is_int64(value) else kind


def _is_int64(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _number_type(kinds: int) -> ColumnType:
    if kinds & _FLOAT:
        return "double"
    return "int64" if kinds & _INT else "bool"


class Row(NamedTuple):
    """A rollout with the fields that become columns."""

    rollout: ExportedLine
    fields: Record


class Column(NamedTuple):
    name: str
    type: ColumnType
    value: Callable[[Row], Any]
    """Computes the cell of a row."""


def _columns(survey: Survey, include_json: bool) -> list[Column]:
    """Key and agent, numbers, texts, the conversation, the whole line."""
    types = survey.numbers() | survey.texts()
    names = _column_names(types)
    columns = [
        Column("task_index", "int64", lambda row: _index(row.rollout, 0)),
        Column("rollout_index", "int64", lambda row: _index(row.rollout, 1)),
        Column("agent", "string", lambda row: row.rollout.agent),
        *(Column(names[name], kind, partial(_cell, name, _CASTS[kind])) for name, kind in types.items()),
        Column(TRANSCRIPT, "transcript", lambda row: transcript(row.rollout.record)),
    ]
    if include_json:
        columns.append(Column(ROLLOUT_JSON, "string", lambda row: _line_text(row.rollout)))
    return columns


def _column_names(fields: Iterable[str]) -> dict[str, str]:
    """A valid and unique column name for each field: its own name if possible."""
    reserved = {"", *OWN_NAMES}
    names = {name: _valid(name) for name in fields}
    kept = {name for name, valid in names.items() if name == valid and name not in reserved}
    taken = reserved | kept
    for name in sorted(names.keys() - kept):
        while names[name] in taken:
            names[name] += TAKEN_SUFFIX
        taken.add(names[name])
    return names


def _cell(name: str, cast: Callable[[Any], Any], row: Row) -> Any:
    value = row.fields.get(name)
    return None if value is None else cast(value)


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _int64(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and _is_int64(value) else None


def _double(value: Any) -> float | None:
    """The value as a float; None if it is not a number, not finite or too large."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_CASTS: dict[ColumnType, Callable[[Any], Any]] = {
    "bool": _bool,
    "int64": _int64,
    "double": _double,
    "string": _string,
}


def _write_parquet(file: IO[bytes], columns: list[Column], rollouts: Iterable[ExportedLine], pa: Any) -> int:
    """Write all rows; returns their number."""
    schema = _schema(columns, pa)
    count = 0
    with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in _batched(columns, rollouts):
            count += len(rows)
            by_column = zip(*rows, strict=True)
            arrays = [_array(cells, kind, pa) for cells, kind in zip(by_column, schema.types, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return count


def _schema(columns: list[Column], pa: Any) -> Any:
    item = pa.struct([(name, pa.string()) for name in Item._fields])
    types = {
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "transcript": pa.list_(item),
    }
    return pa.schema([(column.name, types[column.type]) for column in columns], {VERSION_KEY: __version__})


def _batched(columns: list[Column], rollouts: Iterable[ExportedLine]) -> Iterator[list[list[Any]]]:
    """The cells of the rows, in batches."""
    rows: list[list[Any]] = []
    size = 0
    for rollout in rollouts:
        row = Row(rollout, _fields(rollout.record))
        rows.append([column.value(row) for column in columns])
        size += len(rollout.line.data)
        if len(rows) == _BATCH_ROWS or size >= _BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _array(cells: Sequence[Any], kind: Any, pa: Any) -> Any:
    try:
        return pa.array(cells, kind)
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows and UTF-8 does not
        return pa.array(list(map(_valid, cells)), kind)


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, Item):
        return Item(*map(_valid, value))
    return list(map(_valid, value)) if isinstance(value, list) else value
