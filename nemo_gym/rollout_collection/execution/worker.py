"""One worker process: hosts the servers, plays what the driver sends, sends back finished lines.

Started by `execution.processes`, never by hand. When the socket to the driver closes, the
driver is gone and this process ends.
"""

import asyncio
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from nemo_gym.activity import EndpointLimits
from nemo_gym.client import ServerClient
from nemo_gym.config import config_from_bytes
from nemo_gym.errors import NeMoGymError
from nemo_gym.launch import host_embedded
from nemo_gym.launch.leave import Leaving
from nemo_gym.launch.limits import collect_garbage_less
from nemo_gym.rollout_collection.execution.attempt import Attempt
from nemo_gym.rollout_collection.execution.dispatch import Dispatcher, RolloutPolicy, oldest
from nemo_gym.rollout_collection.execution.executors import SHOWN_OLDEST, ExecutorState
from nemo_gym.rollout_collection.outcome import Outcome

FLUSH_S = 0.005
"""How long outcomes are gathered before they are sent together."""
_LENGTH_BYTES = 4
_END_S = 2.0
"""How long tasks and threads that go on by themselves may take to end when all is told."""
_ALONE_S = 5.0
"""How long a worker without a driver may take to end in good order."""


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is told first. Holds secrets: it goes over a socket pair, never to a file."""

    config: bytes
    """As `dump_config` writes it."""
    is_embedded: bool
    """Whether the worker hosts the servers; else it calls those that run elsewhere."""
    elsewhere: frozenset[str]
    """Names of servers that it does not host though: all workers share them."""
    policy: RolloutPolicy
    call_timeout_s: float
    adaptive_ceiling: int
    """Most calls at one endpoint where concurrency adapts; 0: it does not."""


def frame(message: Any) -> bytes:
    """A message between driver and worker. Both are this program: pickle is safe between them."""
    data = pickle.dumps(message, protocol=5)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next message; raises IncompleteReadError when the other side is gone."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return pickle.loads(await reader.readexactly(length))


class Worker:
    """The worker's side of the conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._outcomes: list[Outcome] = []
        self._flush_at: asyncio.TimerHandle | None = None

    async def work(self) -> None:
        setup: WorkerSetup = await read_frame(self._reader)
        async with _servers(setup) as client:
            limits = EndpointLimits(setup.adaptive_ceiling) if setup.adaptive_ceiling else None
            secrets = config_from_bytes(setup.config).secrets
            attempt = Attempt(client, setup.call_timeout_s, setup.policy.rollout_timeout_s, limits, secrets)
            dispatcher = Dispatcher(attempt, attempt.activity, setup.policy, self._settle)
            collect_garbage_less()
            self._send("ready", None)
            reporting = asyncio.create_task(self._report(dispatcher, limits))
            try:
                await self._obey(dispatcher)
            finally:
                reporting.cancel()
                dispatcher.abandon_all()
                self._flush()
        await self._writer.drain()

    async def _obey(self, dispatcher: Dispatcher) -> None:
        stopping: asyncio.Task[None] | None = None
        while stopping is None or not stopping.done():
            receiving = asyncio.ensure_future(read_frame(self._reader))
            await asyncio.wait({receiving, *filter(None, [stopping])}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                return
            kind, content = receiving.result()
            if kind == "tasks":
                for task in content:
                    dispatcher.submit(task)
            elif kind == "stop" and content > 0:
                stopping = asyncio.create_task(dispatcher.drain(content))
            else:
                return

    def _settle(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        if self._outcomes:
            self._send("outcomes", self._outcomes)
            self._outcomes = []

    async def _report(self, dispatcher: Dispatcher, limits: EndpointLimits | None) -> None:
        while True:
            await asyncio.sleep(1)
            waiting = oldest(dispatcher.in_flight, SHOWN_OLDEST)
            state = ExecutorState(
                len(dispatcher.in_flight),
                dispatcher.retries,
                waiting,
                limits.current() if limits is not None else {},
            )
            self._send("state", state)

    def _send(self, kind: str, content: Any) -> None:
        self._writer.write(frame((kind, content)))


@asynccontextmanager
async def _servers(setup: WorkerSetup) -> AsyncIterator[ServerClient]:
    config = config_from_bytes(setup.config)
    if setup.is_embedded:
        async with host_embedded(config, elsewhere=setup.elsewhere) as client:
            yield client
    else:
        yield ServerClient(config.head_server, config.values)


async def _main(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    try:
        await Worker(reader, writer).work()
    except NeMoGymError as error:
        writer.write(frame(("error", f"{type(error).__name__}: {error}")))
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the driver is gone
    finally:
        writer.close()
        Leaving().within(_END_S, 0)


def _end_with_driver(descriptor: int) -> None:
    """Wait for the driver to be gone; then this process and all that it started end, whatever they do."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    poll.poll()
    time.sleep(_ALONE_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    descriptor = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    os.dup2(2, 1)  # what environments print
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_end_with_driver, args=(os.dup(descriptor),), daemon=True).start()
    uvloop.run(_main(descriptor))
