"""The lock of an output: it has one writer, under whatever name it is opened.

The output file itself is locked, so a symbolic or hard link to it is locked too, and no other file matters.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nemo_gym.errors import OutputInUseError
from nemo_gym.journal import cannot_write, remove_leftovers
from nemo_gym.path_utils import files_of_run, status_path_for
from nemo_gym.rollout_collection.recording import file_lock
from nemo_gym.rollout_collection.recording.status_file import read_status

logger = logging.getLogger(__name__)


class OutputLock:
    """A locked output, which is created if it does not exist."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output.absolute()  # an environment may change the working directory
        self._pid = os.getpid()
        self._is_provisional = not os.path.lexists(self._path)
        """Whether the file was created for the lock only."""
        self._descriptor = self._locked()

    def follow(self) -> None:
        """Lock the file that is the output now, after the earlier one was renamed or rewritten.

        If another process was faster, that one goes on, and this one has not written anything into the file.
        """
        self._is_provisional = False
        if not file_lock.is_at(self._descriptor, self._path):
            earlier, self._descriptor = self._descriptor, self._locked()
            file_lock.close(earlier)

    def release(self) -> None:
        """Unlock the output; a file that was created for the lock and is still empty is deleted."""
        if os.getpid() != self._pid:
            return  # a forked process does not have the lock
        is_unused = self._is_provisional and not os.fstat(self._descriptor).st_size
        if is_unused and file_lock.is_at(self._descriptor, self._path):
            with suppress(OSError):
                self._path.unlink()
        file_lock.close(self._descriptor)

    def _locked(self) -> int:
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise cannot_write(self._output, error) from error
            try:
                file_lock.lock(descriptor)
            except BlockingIOError as error:
                os.close(descriptor)
                raise _in_use(self._output) from error
            except OSError as error:
                logger.warning(
                    "cannot lock %s: %s; make sure that no other run uses this output", self._output, error
                )
            if file_lock.is_at(descriptor, self._path):
                return descriptor
            file_lock.close(descriptor)  # it was renamed or deleted between our two steps


@contextmanager
def exclusive(output: Path) -> Iterator[OutputLock]:
    """Reserve the output for the caller."""
    lock = OutputLock(output)
    try:
        remove_leftovers([*files_of_run(output), status_path_for(output)])
        yield lock
    finally:
        lock.release()


def _in_use(output: Path) -> OutputInUseError:
    about = read_status(status_path_for(output)) or {}
    pid, host = about.get("pid"), about.get("host")
    if (pid, host) == (os.getpid(), socket.gethostname()):
        who = "this process"
    else:
        who = f"process {pid} on {host}" if isinstance(pid, int) else "another process"
    return OutputInUseError(
        f"{who} is collecting into {output}; wait until it has finished, or choose another "
        "+output_jsonl_fpath="
    )
