"""Threads in which the steps of a plain environment run, off the event loop.

Invariants: at most as many steps of an environment run at once as its users allow, over all loops and
managers of the process; a step that hangs past its limit is in nobody's way; threads without work end.

Steps leave a loop together, when it has nothing else to do, and their results come back together. Both sides
work with tensors, and nearly every operation on one hands the interpreter's lock over to whoever waits for
it: a loop and a thread that work at the same time take twice as long as one after the other.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nemo_rl.experience.failures import RolloutTimeout

_LOOK_S = 0.005
"""A result waits no longer than this for those that follow it, one of which may hang."""
IDLE_S = 10.0
"""After which a thread without work ends."""


@dataclass(slots=True, eq=False)
class _Job:
    """A call, and who waits for what it gives."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    desk: _Desk
    future: asyncio.Future[Any]
    began_s: float | None = None
    is_done: bool = False
    is_given_up: bool = False
    """It hangs: its thread ends with it, and another has taken that one's place."""
    _result: Any = None
    _error: BaseException | None = None

    def run(self) -> None:
        self.began_s = time.perf_counter()
        if self.future.cancelled():
            return
        try:
            self._result = self.call(*self.arguments)
        except StopIteration as raised:  # the one error that a coroutine cannot raise
            self._error = RuntimeError(f"the environment raised {raised!r}")
            self._error.__cause__ = raised
        except BaseException as raised:  # the boundary to an environment's own code: the caller gets it
            self._error = raised

    def settle(self) -> None:
        if self.future.cancelled():
            return
        if self._error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(self._error)


class _Desk:
    """The side of one loop. It does not keep the loop alive."""

    def __init__(self, send: Callable[[list[_Job]], None]) -> None:
        self._send = send
        self._leaving: list[_Job] = []
        self._away = 0
        """Jobs that were sent and not settled."""
        self._done: deque[_Job] = deque()
        self._is_woken = False
        self._is_looking = False

    def hand_in(self, job: _Job) -> None:
        self._leaving.append(job)
        if len(self._leaving) == 1:
            asyncio.get_running_loop().call_soon(self._send_all)

    def put(self, job: _Job, is_last: bool) -> None:
        """From any thread."""
        self._done.append(job)
        if is_last and not self._is_woken:
            self._is_woken = True
            try:
                job.future.get_loop().call_soon_threadsafe(self._settle)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._done.clear()

    def _send_all(self) -> None:
        jobs, self._leaving = self._leaving, []
        self._away += len(jobs)
        self._send(jobs)
        if not self._is_looking:
            self._look_later()

    def _look_later(self) -> None:
        self._is_looking = True
        asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._settle()
        self._is_looking = False
        if self._away:
            self._look_later()

    def _settle(self) -> None:
        self._is_woken = False  # first: what comes from here on may be too late for this look
        while self._done:
            self._away -= 1
            self._done.popleft().settle()


class StepThreads:
    """The threads of one environment. They are daemons: one that hangs keeps no process alive."""

    def __init__(self, name: str, idle_s: float = IDLE_S) -> None:
        self._name = name
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._most = 1
        self._running = 0
        self._process = os.getpid()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk] = weakref.WeakKeyDictionary()

    def allow(self, count: int) -> None:
        """So many steps at once, if nobody allowed more before."""
        self._most = max(self._most, count)

    async def run(self, call: Callable[..., Any], *arguments: Any, limit_s: float | None = None) -> Any:
        """RolloutTimeout for a call that takes longer; waiting for its turn does not count."""
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            desk = self._desks[loop] = _Desk(self._send)
        job = _Job(call, arguments, desk, loop.create_future())
        desk.hand_in(job)
        return await (job.future if limit_s is None else self._within(job, limit_s))

    async def _within(self, job: _Job, limit_s: float) -> Any:
        left_s = limit_s
        try:
            while not job.future.done():
                if left_s <= 0 and self._give_up(job):
                    raise RolloutTimeout(f"a step of the environment took longer than {limit_s:g} s")
                await asyncio.wait({job.future}, timeout=max(left_s, _LOOK_S))
                if job.began_s is not None:
                    left_s = job.began_s + limit_s - time.perf_counter()
            return job.future.result()
        finally:
            job.future.cancel()

    def _send(self, jobs: list[_Job]) -> None:
        with self._lock:
            if self._process != os.getpid():  # forked: threads do not come along
                self._process, self._running, self._jobs = os.getpid(), 0, queue.SimpleQueue()
            for job in jobs:
                self._jobs.put(job)
            for _ in range(min(len(jobs), self._most - self._running)):
                self._start()

    def _start(self) -> None:
        self._running += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            with self._lock:
                job.is_done = True
            job.desk.put(job, is_last=self._jobs.empty())
            if job.is_given_up:
                return
            del job  # and with it the environment, which may go while this thread waits

    def _next(self) -> _Job | None:
        """None where the thread is to end."""
        try:
            return self._jobs.get(timeout=self._idle_s)
        except queue.Empty:
            with self._lock:
                if not self._jobs.empty():  # came meanwhile, and nobody was started for it
                    return self._jobs.get_nowait()
                self._running -= 1
                return None

    def _give_up(self, job: _Job) -> bool:
        """Let another thread take the place of the one that runs it; not where it is done."""
        with self._lock:
            if job.is_done:
                return False
            job.is_given_up = True
            self._running -= 1
            if not self._jobs.empty():
                self._start()
            return True


_OF_ENVIRONMENTS: dict[int, StepThreads] = {}
"""By the environment's id, while it lives: whoever has an environment shares its threads."""


def threads_of(environment: object) -> StepThreads:
    """The threads in which this environment is stepped, whichever manager asks."""
    key = id(environment)
    found = _OF_ENVIRONMENTS.get(key)
    if found is None:
        found = StepThreads(f"environment {type(environment).__name__}")
        with suppress(TypeError):  # an object that nobody can watch: its threads are the caller's alone
            weakref.finalize(environment, _OF_ENVIRONMENTS.pop, key, None).atexit = False
            _OF_ENVIRONMENTS[key] = found
    return found
