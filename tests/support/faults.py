"""Makes system calls fail in the process of a collector."""

import itertools
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STEPS = ("write", "ftruncate", "truncate", "fsync", "replace", "rename", "unlink")
"""System calls that change a file or make the change durable."""


def die_in_write(name: str, number: int, share: float) -> None:
    """Cut the n-th write (`number`) to files of this name: write part of the data, then kill the process."""
    write, numbers = os.write, itertools.count(1)

    def cut(descriptor: int, data: bytes) -> int:
        if _path_of(descriptor).name == name and next(numbers) == number:
            write(descriptor, data[: int(len(data) * share)])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    os.write = cut


def die_before_step(number: int, folder: Path) -> None:
    """Kill the process before the n-th change (`number`) of a file in the folder."""
    _die_before(number, lambda path: path.parent == folder)


def die_before_step_of(folder: Path, parts: tuple[str, ...], number: int) -> None:
    """The same, for files in the folder whose names contain one of `parts`."""
    _die_before(number, lambda path: path.parent == folder and any(part in path.name for part in parts))


def _die_before(number: int, concerns: Callable[[Path], bool]) -> None:
    numbers = itertools.count(1)

    def guarded(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(target: Any, *rest: Any, **options: Any) -> Any:
            if concerns(_path_of(target)) and next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(target, *rest, **options)

        return run

    for name in _STEPS:
        setattr(os, name, guarded(getattr(os, name)))


def limit_file_size(size: int) -> None:
    """Limit the size of files: a write beyond it fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _path_of(target: int | str | os.PathLike[str]) -> Path:
    if isinstance(target, int):
        return Path(os.readlink(f"/proc/self/fd/{target}"))
    return Path(target).absolute()
