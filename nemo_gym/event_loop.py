"""The event loop of a process that also runs code of environments, which may stop or fork it.

Invariant: the main task ends only by itself or by a real Ctrl-C, and a forked process never continues it.
"""

import asyncio
import logging
import os
import signal
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import uvloop

logger = logging.getLogger(__name__)

T = TypeVar("T")


def run_to_end(
    main: Coroutine[Any, Any, T],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> T:
    """Run a coroutine as `asyncio.run` does, but continue if the code of an environment stops the loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        loop = runner.get_loop()
        owner = os.getpid()
        os.register_at_fork(after_in_child=partial(_end_in_loop, weakref.ref(loop), owner))
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (RuntimeError, KeyboardInterrupt, SystemExit) as error:
                if task.done() or is_ctrl_c(error):
                    raise
                how = "stopped the event loop" if isinstance(error, RuntimeError) else f"raised {error!r}"
                logger.warning("the code of an environment %s; continuing. Remove that from its code", how)
            finally:
                end_forked_process(owner)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether a signal raised a KeyboardInterrupt, not the code of an environment.

    The commands have handlers of their own, which raise nothing.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == "asyncio.runners"


def end_forked_process(owner: int) -> None:
    """End this process at once if it is not the owner of what it is about to use, but was forked from it."""
    if os.getpid() == owner:
        return
    text = (
        f"process {os.getpid()}, which the code of an environment forked from process {owner}, returned from "
        "that code; it was ended. Use subprocess or multiprocessing, or end a forked process with os._exit\n"
    )
    os.write(2, text.encode())
    os._exit(1)


def _end_in_loop(loop: "weakref.ref[asyncio.AbstractEventLoop]", owner: int) -> None:
    """In a forked process: end it when it returns to the loop. Others, as of multiprocessing, never do."""
    known = loop()
    if known is not None and not known.is_closed():
        known.call_soon(end_forked_process, owner)
