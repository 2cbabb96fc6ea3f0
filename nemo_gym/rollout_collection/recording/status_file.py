"""The status file of a running collection. It also keeps a second collection away from the same output.

The collection locks the file that it writes. A lock ends with its process, however that ends, so an unlocked
file is a leftover.
"""

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.errors import OutputInUseError
from nemo_gym.journal import cannot_write, remove_leftovers
from nemo_gym.path_utils import files_of_run, status_path_for

logger = logging.getLogger(__name__)

_LOOKS = 10
"""Times, 20 ms apart, to try to lock or read a file that another process uses for a moment."""


class StatusFile:
    """An open and locked status file."""

    def __init__(self, descriptor: int, output: Path) -> None:
        self._descriptor = descriptor
        self._about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "output": str(output),
            "started_at": time.time(),
        }

    def write(self, **entries: Any) -> None:
        """Replace the content. It only informs, so a full disk does not matter."""
        data = encode_json({**self._about, "time": time.time(), **entries})
        with suppress(OSError):
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))


@contextmanager
def exclusive(output: Path) -> Iterator[StatusFile]:
    """Reserve the output for this process."""
    path = status_path_for(output)
    descriptor = _locked(path, output)
    try:
        remove_leftovers(files_of_run(output))
        status = StatusFile(descriptor, output)
        status.write()
        yield status
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _locked(path: Path, output: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise cannot_write(output, error) from error
        try:
            _lock(descriptor)
        except BlockingIOError as error:
            about = _content(path) or {}
            os.close(descriptor)
            who = f"process {about['pid']} on {about['host']}" if "pid" in about else "another process"
            raise OutputInUseError(
                f"{who} is collecting into {output}; wait until it has finished, or choose another "
                "+output_jsonl_fpath="
            ) from error
        except OSError as error:
            logger.warning("cannot lock %s: %s; make sure that no other run uses this output", path, error)
        if _is_same(descriptor, path):
            return descriptor
        os.close(descriptor)  # its owner removed it between our two steps


def _lock(descriptor: int) -> None:
    """Take the lock. A process that only reads a status file holds it for a moment."""
    for _ in range(_LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def read_status(path: Path) -> dict[str, Any] | None:
    """The status of a running collection; None if none is running."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # not locked: a leftover
    except OSError:
        return _content(path)
    finally:
        os.close(descriptor)


def _content(path: Path) -> dict[str, Any] | None:
    """The content, read again if it was just being written."""
    for _ in range(_LOOKS):
        try:
            content = decode_json(path.read_bytes())
            return content if isinstance(content, dict) else None
        except OSError:
            return None
        except ValueError:
            time.sleep(0.02)
    return None
