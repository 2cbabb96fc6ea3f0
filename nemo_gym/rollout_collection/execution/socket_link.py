"""Worker processes on this machine: a link over a socket pair, one pickled message per frame.

Each worker process leads a process group of its own, which is killed as a whole. It also holds the read end
of a pipe whose write end is here: when that closes, this process is gone (`worker_process.py`). Through a
second pipe it reports the rollout because of which it ends itself: then its event loop cannot send a message.
"""

import asyncio
import os
import pickle
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from nemo_gym.config import config_from_bytes
from nemo_gym.environment_variables import child_environment
from nemo_gym.event_loop import end_forked_process
from nemo_gym.launch.logs import take_lines
from nemo_gym.log_output import log_foreign_line
from nemo_gym.rollout_collection.execution.link import FromWorker, LinkClosedError, ToWorker
from nemo_gym.rollout_collection.execution.worker import WorkerSetup
from nemo_gym.rollout_collection.outcome import Failure

_LENGTH_BYTES = 4
_MOST_LAST_WORDS = 1 << 16
_LAST_OUTPUT_S = 1.0
"""Longest wait for the last output of a worker that has ended."""
_START = "from nemo_gym.rollout_collection.execution.worker_process import main; main()"


class Frames:
    """Messages over a socket. Both ends are this program, so pickle is safe between them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._owner = os.getpid()

    @classmethod
    async def over(cls, end: socket.socket) -> "Frames":
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, message: object) -> None:
        end_forked_process(self._owner)
        if not self._writer.is_closing():
            data = pickle.dumps(message, protocol=5)
            self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    async def receive(self) -> Any:
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise LinkClosedError from error

    async def flush(self) -> None:
        """Wait until everything has been sent; does nothing if the other side is gone."""
        self._writer.transport.set_write_buffer_limits(high=0)  # otherwise `drain` lets some data wait
        with suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class ProcessLink:
    """The pool's link to a worker process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        frames: Frames,
        lifeline: int,
        last_words: int,
        showing_output: "asyncio.Task[None]",
    ) -> None:
        self._process = process
        self._frames = frames
        self._lifeline = lifeline
        self._last_words = last_words
        self._blamed: Failure | None = None
        self._showing_output = showing_output

    def send(self, message: ToWorker) -> None:
        self._frames.send(message)

    async def receive(self) -> FromWorker:
        message: FromWorker = await self._frames.receive()
        return message

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def blamed(self) -> Failure | None:
        return self._blamed

    async def close(self) -> str:
        self._frames.close()
        code = await self._process.wait()
        await asyncio.wait({self._showing_output}, timeout=_LAST_OUTPUT_S)
        self._showing_output.cancel()  # what the worker has started may keep the pipe open
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            self._blamed = _failure_in(self._last_words)
            os.close(self._last_words)
        return f"exit code {code}" if code >= 0 else signal.strsignal(-code) or f"signal {-code}"


def _failure_in(pipe: int) -> Failure | None:
    """What a worker that has ended wrote into its pipe."""
    os.set_blocking(pipe, False)  # a process that it started may still hold the other end
    try:
        data = os.read(pipe, _MOST_LAST_WORDS)
        failure: Failure | None = pickle.loads(data) if data else None
    except (OSError, EOFError, pickle.UnpicklingError):  # it was killed before it had written all
        return None
    return failure


async def start_worker_process(setup: WorkerSetup) -> ProcessLink:
    """Start a worker process and send it its setup; raises OSError if that is impossible."""
    ours, theirs = socket.socketpair()
    frames = await Frames.over(ours)
    ended, lifeline = os.pipe()
    last_words, said = os.pipe()
    output, written = os.pipe()
    try:
        process = await _spawn(written, theirs.fileno(), ended, said)
    except BaseException:
        frames.close()
        os.close(lifeline)
        os.close(last_words)
        os.close(output)
        raise
    finally:
        theirs.close()
        os.close(ended)
        os.close(said)
        os.close(written)
    frames.send(setup)
    secrets = config_from_bytes(setup.config).secrets
    showing = asyncio.create_task(take_lines(os.fdopen(output, "rb", 0), secrets, log_foreign_line))
    return ProcessLink(process, frames, lifeline, last_words, showing)


async def _spawn(output: int, *descriptors: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", _START, *map(str, descriptors)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=descriptors,
        env=child_environment(),
        start_new_session=True,  # Ctrl-C in the terminal reaches only this process
    )
