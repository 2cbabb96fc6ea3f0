"""The process of a worker. Started by `socket_link`, never by hand."""

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from functools import partial

from nemo_gym.event_loop import run_to_end
from nemo_gym.launch.leave import Leaving
from nemo_gym.log_output import log_counts, start_logging
from nemo_gym.rollout_collection.execution.link import LinkClosedError
from nemo_gym.rollout_collection.execution.socket_link import Frames
from nemo_gym.rollout_collection.execution.worker import EndWorker, WorkerPolicy, WorkerSetup, serve
from nemo_gym.rollout_collection.outcome import Failure


def main() -> None:
    link, lifeline, last_words = map(int, sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    start_logging(logging.WARNING, with_names=True)
    try:
        run_to_end(_work(socket.socket(fileno=link), lifeline, partial(_end_blaming, last_words)))
    except asyncio.CancelledError:
        sys.exit("the code of an environment cancelled all tasks of a worker; remove that from its code")


async def _work(end: socket.socket, lifeline: int, end_worker: EndWorker) -> None:
    driver = await Frames.over(end)
    policy = WorkerPolicy()
    try:
        setup: WorkerSetup = await driver.receive()
        policy = setup.policy
        threading.Thread(target=_end_with_driver, args=(lifeline, policy.orphan_s), daemon=True).start()
        await serve(driver, setup, end_worker)
        await driver.flush()
    except LinkClosedError:
        pass  # the driver is gone
    finally:
        driver.close()
        log_counts()
        Leaving().within(policy.exit_s, 0)


def _end_blaming(last_words: int, failure: Failure) -> None:
    """End this process and all that it started, although its event loop is blocked."""
    os.write(last_words, pickle.dumps(failure))
    os.killpg(0, signal.SIGKILL)


def _end_with_driver(lifeline: int, orphan_s: float) -> None:
    """Wait until the driver is gone; then end this process and all that it started, whatever they do."""
    os.read(lifeline, 1)  # nothing is ever written: it returns when the other end is closed
    time.sleep(orphan_s)
    os.killpg(0, signal.SIGKILL)
