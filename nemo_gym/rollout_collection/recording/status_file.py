"""The status file of a running collection, for `ng_status`. It only informs: nothing depends on it.

It is always a file that this collection has created, never one that was there before. It is locked while the
collection runs, so an unlocked status file is a leftover.
"""

import os
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.journal import new_temporary
from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.recording import file_lock
from nemo_gym.rollout_collection.recording.foreign_data import tamed

_LOOKS = 10
"""Times, 20 ms apart, to read a file that is just being written."""
_MOST_BYTES = 1 << 20


class StatusFile:
    """The status of one collection; deleted at the end."""

    def __init__(self, output: Path) -> None:
        self._path = status_path_for(output).absolute()  # the working directory may change
        self._descriptor: int | None = None
        self._about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "output": str(output),
            "started_at": time.time(),
        }

    def write(self, **entries: Any) -> None:
        """Replace the content. It only informs, so a full disk does not matter."""
        if not self._is_ours:
            return
        data = encode_json({**self._about, "time": time.time(), **entries})
        with suppress(OSError):
            if self._descriptor is None or not file_lock.is_at(self._descriptor, self._path):
                self._publish(data)
            else:
                os.pwrite(self._descriptor, data, 0)
                os.ftruncate(self._descriptor, len(data))

    def _publish(self, data: bytes) -> None:
        """Write a new file, which replaces whatever has its name; a link is not followed."""
        descriptor, temporary = new_temporary(self._path)
        try:
            with suppress(OSError):  # not supported by some file systems
                file_lock.lock(descriptor)
            os.write(descriptor, data)
            temporary.replace(self._path)
        except OSError:
            file_lock.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        self._close()
        self._descriptor = descriptor

    @property
    def _is_ours(self) -> bool:
        """False in a process that was forked from that of the collection."""
        return os.getpid() == self._about["pid"]

    def _close(self) -> None:
        if self._descriptor is not None:
            file_lock.close(self._descriptor)

    def __enter__(self) -> "StatusFile":
        self.write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours and self._descriptor is not None:
            if file_lock.is_at(self._descriptor, self._path):
                with suppress(OSError):
                    self._path.unlink()
            self._close()


def read_status(path: Path) -> dict[str, Any] | None:
    """The status of a running collection; None if none is running."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe must not block
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not file_lock.is_locked(descriptor):
            return None
        return _content(descriptor)
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> dict[str, Any] | None:
    """The content, read again if it was just being written."""
    for _ in range(_LOOKS):
        try:
            content = decode_json(os.pread(descriptor, _MOST_BYTES, 0))
            return tamed(content) if isinstance(content, dict) else None
        except (OSError, RecursionError):
            return None
        except ValueError:
            time.sleep(0.02)
    return None
