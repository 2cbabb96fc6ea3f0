"""Locks of open files. A lock ends with the process that took it, however that ends.

Processes that this one forks close their copies, so a child that outlives its parent does not keep the lock.
"""

import fcntl
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

_HELD: set[int] = set()
"""The locked descriptors of this process."""
_TRIES = 10
_PAUSE_S = 0.02


def lock(descriptor: int) -> None:
    """Lock an open file. Raises BlockingIOError if another one holds the lock for longer than a moment."""
    _close_in_children()
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(_PAUSE_S)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _HELD.add(descriptor)


def close(descriptor: int) -> None:
    """Close a file, which also unlocks it."""
    _HELD.discard(descriptor)
    os.close(descriptor)


def is_locked(descriptor: int) -> bool:
    """Whether another open file has the lock; True also if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the path leads to this open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@cache
def _close_in_children() -> None:
    os.register_at_fork(after_in_child=_close_held)


def _close_held() -> None:
    while _HELD:
        with suppress(OSError):
            os.close(_HELD.pop())
