"""JSONL files that survive the death of their writer.

Invariant: when `append` returns, the whole line is in the file; a write that fails leaves no part of a line.
`recover` finds an incomplete line of a killed writer and moves it to a separate file.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from nemo_gym.codec import decode_json
from nemo_gym.errors import InputError, JournalError
from nemo_gym.event_loop import end_forked_process


class Line(NamedTuple):
    number: int
    """Counted from 1."""
    offset: int
    """The offset of its first byte in the file."""
    data: bytes
    """Without the newline."""
    is_ended: bool
    """False for a last line without a newline."""


READ_BYTES = 1 << 18
"""Buffer size for reading a file line by line."""


def read_lines(path: Path) -> Iterator[Line]:
    """Every line of a file with its position."""
    offset = 0
    with path.open("rb", READ_BYTES) as file:
        for number, data in enumerate(file, 1):
            is_ended = data.endswith(b"\n")
            yield Line(number, offset, data[:-1] if is_ended else data, is_ended)
            offset += len(data)


def line_numbers(path: Path, offsets: Iterable[int]) -> dict[int, int]:
    """The line numbers of the lines that start at these offsets."""
    wanted, found = set(offsets), dict[int, int]()
    if not wanted:
        return found
    for line in read_lines(path):
        if line.offset in wanted:
            found[line.offset] = line.number
            if len(found) == len(wanted):
                return found
    raise InputError(f"{path}: changed while it was read; try again when no run is writing it")


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every JSON object of a file with its line number. Blank lines are skipped; other lines are errors."""
    try:
        for line in read_lines(path):
            if line.data.strip():
                yield line.number, json_object(line.data.strip(), f"{path}:{line.number}")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; check its name and permissions"
        ) from error


def json_object(data: bytes, place: str) -> dict[str, Any]:
    """The JSON object in a line; an error with the place if there is none."""
    try:
        value = decode_json(data)
    except (ValueError, RecursionError) as error:
        reason = str(error).replace("line 1 ", "")  # the place has the line number, which is not 1
        raise InputError(f"{place}: not JSON: {reason}; write one JSON object per line") from error
    if not isinstance(value, dict):
        raise InputError(
            f"{place}: a {type(value).__name__}, not a JSON object; write one JSON object per line"
        )
    return value


class Journal:
    """Appends lines to a file. A file has one writer; a process that was forked from it is ended."""

    def __init__(self, path: Path, place: Path | None = None) -> None:
        self.path = path
        self.place = place or path.absolute()
        """The same, in whatever working directory the program is later."""
        try:
            self._file = os.open(self.place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.size = os.fstat(self._file).st_size
        except OSError as error:
            raise cannot_write(path, error) from error
        self._is_synced = True
        self._owner = os.getpid()

    @property
    def descriptor(self) -> int:
        return self._file

    def append(self, line: bytes) -> int:
        """Write a line; returns the offset of its first byte when the operating system has all of it."""
        end_forked_process(self._owner)
        offset, data = self.size, line + b"\n"
        try:
            written = os.write(self._file, data)
            while written < len(data):  # a disk that is nearly full accepts only a part
                written += os.write(self._file, data[written:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, offset)
            raise cannot_write(self.path, error) from error
        self.size = offset + len(data)
        self._is_synced = False
        return offset

    def sync(self) -> None:
        """Make all written lines survive a power failure. Blocks; may be called in any thread."""
        if not self._is_synced:
            self._is_synced = True
            try:
                os.fsync(self._file)
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_synced = False  # a sync in another thread may still be running
        try:
            self.sync()
        finally:
            os.close(self._file)


class SetAside(NamedTuple):
    """A line that `recover` removed from a file."""

    number: int
    reason: str


@dataclass
class Recovery:
    """The result of `recover`."""

    set_aside: list[SetAside] = field(default_factory=list)
    kept_in: Path | None = None
    """The file that contains these lines now."""


Judge = Callable[[bytes], str | None]
"""Called with a line, perhaps with its newline; returns None to keep it, else the reason to remove it."""
_NEWLINE = 10


def recover(path: Path, judge: Judge) -> Recovery:
    """Remove all lines that the judge rejects, and write them to a file next to this one.

    An incomplete last line is cut off in place; for any other line the whole file is rewritten.
    """
    recovery = Recovery()
    ends_open = False
    good_end = 0
    """The end of the accepted lines in the repaired file."""
    bad: list[Line] = []
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            reason = judge(data)
            if reason is None:
                ends_open = data[-1] != _NEWLINE
                good_end += len(data) + ends_open
            else:
                bad.append(Line(number, file.tell() - len(data), data.removesuffix(b"\n"), True))
                recovery.set_aside.append(SetAside(number, reason))
    if bad:
        recovery.kept_in = _free_name(path, "torn")
        write_whole(recovery.kept_in, (line.data + b"\n" for line in bad))
        if len(bad) == 1 and bad[0].offset == good_end:
            os.truncate(path, good_end)
        else:
            numbers = {line.number for line in bad}
            write_whole(path, (line.data + b"\n" for line in read_lines(path) if line.number not in numbers))
    elif ends_open:
        with Journal(path) as journal:
            journal.append(b"")
    return recovery


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file atomically: afterwards it has all the new content, or is unchanged."""
    with new_file(path) as file:
        file.writelines(pieces)


class new_file:
    """`with new_file(path) as file:` replaces the file when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor, self._temporary = new_temporary(path)
        except OSError as error:
            raise cannot_write(path, error) from error
        self._file: IO[bytes] = os.fdopen(descriptor, "wb", 1 << 18)

    def __enter__(self) -> IO[bytes]:
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._temporary.replace(self.path)
                _sync_folder(self.path.parent)
            elif isinstance(error, OSError):
                raise cannot_write(self.path, error) from error
        except OSError as failure:
            raise cannot_write(self.path, failure) from failure
        finally:
            with suppress(OSError):
                self._file.close()
            self._temporary.unlink(missing_ok=True)


def new_temporary(path: Path) -> tuple[int, Path]:
    """A new file beside this one: its descriptor and its path."""
    prefix = f".{path.name.lstrip('.')}."  # `remove_leftovers` searches for this prefix
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    os.fchmod(descriptor, 0o666 & ~_umask())
    return descriptor, Path(name)


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove temporary files of killed writers. Only call it if no other process writes these files."""
    for path in paths:
        for leftover in path.parent.glob(f".{escape(path.name)}.*.tmp"):
            with suppress(OSError):
                leftover.unlink()


def set_aside(paths: Sequence[Path]) -> list[Path]:
    """Rename the existing files to names that no glob for `.jsonl` matches. Empty ones are deleted."""
    moved = []
    for path in paths:
        if not path.exists():
            continue
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()
            continue
        target = _free_name(path, "bak")
        path.rename(target)
        moved.append(target)
    return moved


def make_parent(path: Path) -> None:
    """Create the folder of a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> JournalError:
    reason = error.strerror or str(error)
    return JournalError(
        f"cannot write {path}: {reason}; free disk space, make it writable, or choose another output with "
        "+output_jsonl_fpath=<path>"
    )


def _free_name(path: Path, ending: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    candidates = (
        path.with_name(f"{path.name}.{stamp}{f'-{number}' if number else ''}.{ending}")
        for number in range(10_000)
    )
    return next(candidate for candidate in candidates if not candidate.exists())


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not supported by some file systems
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
