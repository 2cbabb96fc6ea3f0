"""Rollouts in other forms: Parquet, JSONL with a chat-style `output`, and from Parquet back to their lines.

Invariant: an output is whole or as it was before; of the input no more is held than one batch of rows. What
no column can hold is null in it; the line as it was stands in `rollout_json`.
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
"""What is put after a field's name that is one of these."""
VERSION_KEY = "nemo_gym_version"
"""In the metadata of a Parquet file."""

_PARQUET, _JSONL = ".parquet", ".jsonl"
_BATCH_ROWS = 4096
_BATCH_BYTES = 16 << 20
"""Of the input, in one batch: long rollouts make small ones."""
_BACK_ROWS = 256
_CONTENT = {RESPONSE_KEY_NAME, OUTPUT_KEY_NAME, "reward"}
_RUN_KEYS = {TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, AGENT_REF_KEY_NAME}
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")


class Exported(NamedTuple):
    """What was written."""

    rollouts: int
    columns: int | None
    """None for a file without columns."""


def export_rollouts(
    input_fpath: str | Path,
    output_fpath: str | Path,
    bad_lines: BadLines | None = None,
    *,
    include_json: bool = True,
) -> Exported:
    """Write the rollouts of one file to another; the endings of their names say in which form.

    `bad_lines` says what becomes of lines that are no rollouts, and of a key that stands a second time.
    `include_json=False` leaves the column with the whole line out of a Parquet file.
    """
    source, target = expand(input_fpath), expand(output_fpath)
    forms = (_form(source), _form(target))
    _refuse_target(target, source)
    bad_lines = BadLines() if bad_lines is None else bad_lines
    if forms == (_JSONL, _PARQUET):
        return _to_parquet(source, target, bad_lines, include_json)
    if forms == (_JSONL, _JSONL):
        return _to_older_jsonl(source, target, bad_lines)
    if forms == (_PARQUET, _JSONL):
        return _back_to_jsonl(source, target)
    raise ConfigError(f"{source}: a Parquet file already; name an output that ends in {_JSONL}")


class ExportedLine(NamedTuple):
    """One line that is exported."""

    line: Line
    record: Record
    key: Key | None
    """None where it is of the older form, in which rollouts had neither keys nor agents."""
    agent: str | None


def _lines(path: Path, bad_lines: BadLines) -> Iterator[ExportedLine]:
    """Every rollout of a file; a key that stands twice makes a bad line of the second."""
    first_lines: dict[int, int] = {}
    for line, record in read_records(path, bad_lines):
        if OUTPUT_KEY_NAME in record and _RUN_KEYS.isdisjoint(record):
            yield ExportedLine(line, record, None, None)
            continue
        try:
            rollout = checked_rollout(path, line, record)
            if _CONTENT.isdisjoint(record):
                raise InputError(
                    f"{path}:{line.number}: no rollout: it has neither a response nor a reward; "
                    f"name a file of rollouts, {SKIP_HINT}"
                )
            refuse_repeated(path, rollout, first_lines)
        except InputError as error:
            bad_lines.take(error)
        else:
            yield ExportedLine(*rollout)


def _index(rollout: ExportedLine, part: int) -> int | None:
    return None if rollout.key is None else rollout.key[part]


def _form(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in (_PARQUET, _JSONL):
        raise ConfigError(
            f"{path}: ends in {ending or 'nothing'}; name a file that ends in {_PARQUET} or {_JSONL}"
        )
    return ending


def _refuse_target(target: Path, source: Path) -> None:
    if not os.path.exists(target):
        return
    if os.path.exists(source) and os.path.samefile(target, source):
        raise ConfigError(f"{target}: output and input are the same file; choose another output file")
    if not os.path.isfile(target):
        raise ConfigError(f"{target}: a folder or a device, not a file; choose another output file")


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """The new content of a file, which takes its place when all is written."""
    try:
        make_parent(target)
        with new_file(target.resolve()) as file:
            yield file
    except JournalError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
        raise ConfigError(
            f"cannot write {target}: {reason or error.__cause__}; make room or choose another output file"
        ) from error


def _to_older_jsonl(source: Path, target: Path, bad_lines: BadLines) -> Exported:
    count = 0
    with _replacing(target) as file:
        for rollout in _lines(source, bad_lines):
            file.write(_older_line(rollout) + b"\n")
            count += 1
    return Exported(count, None)


def _older_line(rollout: ExportedLine) -> bytes:
    """The line with the conversation as chat messages at its end; one that has an `output` stays as it is."""
    if OUTPUT_KEY_NAME in rollout.record:
        return rollout.line.data
    head = _line_text(rollout).rstrip().removesuffix("}").encode()
    return head + b',"output":' + encode_json(chat_messages(output_items(rollout.record))) + b"}"


def _line_text(rollout: ExportedLine) -> str:
    """The line as it stands in the file; one that is not UTF-8, which JSON's reader forgives, in ASCII."""
    try:
        return rollout.line.data.decode()
    except UnicodeDecodeError:
        return json.dumps(rollout.record)


def _back_to_jsonl(source: Path, target: Path) -> Exported:
    pa = _pyarrow()
    if not source.is_file():
        raise InputError(f"{source}: no such file; check its name")
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
            f"{source}: has no column {ROLLOUT_JSON}, which alone holds the whole rollouts; export them "
            "again without +include_json=false"
        )


def _batches(source: Path, table: Any, pa: Any) -> Iterator[list[str | None]]:
    """The lines in the file, some at a time. What fails here is the reading, not the writing."""
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
            f"{source}: cannot be read as Parquet: {reason}; name a file that ng export has written"
        ) from error


def _to_parquet(source: Path, target: Path, bad_lines: BadLines, include_json: bool) -> Exported:
    """Read twice: for the fields and their types, and for the rows."""
    pa = _pyarrow()
    survey = Survey()
    for rollout in _lines(source, bad_lines):
        survey.take(rollout.record)
    columns = _columns(survey, include_json)
    again = _lines(source, BadLines(bad_lines.are_skipped))
    with _replacing(target) as file:
        count = _write_parquet(file, columns, islice(again, survey.count), pa)
        if count < survey.count:
            raise InputError(f"{source}: became shorter while it was read; export it again")
    return Exported(count, len(columns))


def _pyarrow() -> Any:
    load_extra("pyarrow.parquet", "export", "a Parquet file")
    return load_extra("pyarrow", "export", "a Parquet file")


_BOOL, _INT, _FLOAT, _TEXT, _OTHER = 1, 2, 4, 8, 16
_KINDS = {bool: _BOOL, int: _INT, float: _FLOAT, str: _TEXT, type(None): 0}
ColumnType = Literal["int64", "double", "bool", "string", "transcript"]


@dataclass
class Survey:
    """What kinds of values the fields of a file have."""

    count: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Of each field, in the order they were first seen: the kinds of its values, added up."""

    def take(self, record: Record) -> None:
        self.count += 1
        kinds = self.kinds
        for name, value in _fields(record).items():
            kinds[name] = kinds.get(name, 0) | _kind(value)

    def numbers(self) -> dict[str, ColumnType]:
        """The fields with a number in some rollout."""
        found = {name: kinds & (_BOOL | _INT | _FLOAT) for name, kinds in self.kinds.items()}
        return {name: _number_type(kinds) for name, kinds in found.items() if kinds}

    def texts(self) -> dict[str, ColumnType]:
        """The fields that are a string wherever they are."""
        return {name: "string" for name, kinds in self.kinds.items() if kinds == _TEXT}


def _fields(record: Record) -> Record:
    """A rollout's own fields and the numbers of its token usage; its own hide those of the same name."""
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
    """A rollout, as columns look at it."""

    rollout: ExportedLine
    fields: Record


class Column(NamedTuple):
    name: str
    type: ColumnType
    value: Callable[[Row], Any]
    """What stands in it for a rollout."""


def _columns(survey: Survey, include_json: bool) -> list[Column]:
    """Ids, numbers, texts, the conversation, the whole line."""
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
    """Their own names; no two columns share one, and each is text."""
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
    """None where there is no such float: not a number, infinite, or a whole number beyond all of them."""
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
    """Gives the number of rows."""
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
    """The cells of some rows at a time."""
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
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can say and UTF-8 cannot
        return pa.array(list(map(_valid, cells)), kind)


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF_SURROGATE.sub("\ufffd", value)
    if isinstance(value, Item):
        return Item(*map(_valid, value))
    return list(map(_valid, value)) if isinstance(value, list) else value
