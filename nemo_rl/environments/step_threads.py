"""Threads in which the steps of a plain environment run, off the event loop.

Invariants: at most as many steps of an environment run at once as its users allow, over all loops and
managers of the process; a step that hangs past its limit does not block other steps; idle threads end.

Steps are sent from a loop in batches, when it has nothing else to do, and their results return in batches.
Both sides work with tensors, and nearly every tensor operation releases the interpreter lock: a loop and a
thread that work at the same time take 1.7 times as long as one after the other.
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

_POLL_S = 0.005
"""How long a result waits at most to be returned with later ones, one of which may hang."""
IDLE_S = 10.0
"""An idle thread ends after this time."""


@dataclass(slots=True, eq=False)
class _Job:
    """A call and the future for its result."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop_side: _LoopSide
    future: asyncio.Future[Any]
    began_s: float | None = None
    is_done: bool = False
    is_given_up: bool = False
    """The call hangs. Another thread has replaced its thread, which ends when the call returns."""
    _result: Any = None
    _error: BaseException | None = None

    def run(self) -> None:
        self.began_s = time.perf_counter()
        if self.future.cancelled():
            return
        try:
            self._result = self.call(*self.arguments)
        except StopIteration as raised:  # a coroutine cannot raise it
            self._error = RuntimeError(f"the environment raised {raised!r}")
            self._error.__cause__ = raised
        except BaseException as raised:  # the boundary to an environment's own code: raised in the caller
            self._error = raised

    def resolve(self) -> None:
        if self.future.cancelled():
            return
        if self._error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(self._error)


class _LoopSide:
    """The jobs of one event loop. It does not keep the loop alive."""

    def __init__(self, send: Callable[[list[_Job]], None]) -> None:
        self._send = send
        self._unsent: list[_Job] = []
        self._unresolved = 0
        """Jobs that were sent and whose future is not resolved."""
        self._done: deque[_Job] = deque()
        self._is_woken = False
        self._is_polling = False

    def submit(self, job: _Job) -> None:
        self._unsent.append(job)
        if len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._send_all)

    def return_job(self, job: _Job, is_last: bool) -> None:
        """Called from any thread."""
        self._done.append(job)
        if is_last and not self._is_woken:
            self._is_woken = True
            try:
                job.future.get_loop().call_soon_threadsafe(self._resolve_done)
            except RuntimeError:  # the loop is closed, so no caller waits
                self._done.clear()

    def _send_all(self) -> None:
        jobs, self._unsent = self._unsent, []
        self._unresolved += len(jobs)
        self._send(jobs)
        if not self._is_polling:
            self._poll_later()

    def _poll_later(self) -> None:
        self._is_polling = True
        asyncio.get_running_loop().call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        self._resolve_done()
        self._is_polling = False
        if self._unresolved:
            self._poll_later()

    def _resolve_done(self) -> None:
        self._is_woken = False  # first: jobs returned from here on may be too late for this loop
        while self._done:
            self._unresolved -= 1
            self._done.popleft().resolve()


class StepThreads:
    """The threads of one environment. They are daemons, so one that hangs does not keep the process alive."""

    def __init__(self, name: str, idle_s: float = IDLE_S) -> None:
        self._name = name
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._most = 1
        self._running = 0
        self._process = os.getpid()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._loop_sides: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSide] = (
            weakref.WeakKeyDictionary()
        )

    def allow(self, count: int) -> None:
        """Allow this many steps at once; a larger number that was allowed before stays."""
        self._most = max(self._most, count)

    async def run(self, call: Callable[..., Any], *arguments: Any, limit_s: float | None = None) -> Any:
        """The result of a call in a thread. A call longer than `limit_s` raises RolloutTimeout; time in the
        queue does not count."""
        loop = asyncio.get_running_loop()
        loop_side = self._loop_sides.get(loop)
        if loop_side is None:
            loop_side = self._loop_sides[loop] = _LoopSide(self._send)
        job = _Job(call, arguments, loop_side, loop.create_future())
        loop_side.submit(job)
        return await (job.future if limit_s is None else self._within(job, limit_s))

    async def _within(self, job: _Job, limit_s: float) -> Any:
        left_s = limit_s
        try:
            while not job.future.done():
                if left_s <= 0 and self._give_up(job):
                    raise RolloutTimeout(f"a step of the environment took longer than {limit_s:g} s")
                await asyncio.wait({job.future}, timeout=max(left_s, _POLL_S))
                if job.began_s is not None:
                    left_s = job.began_s + limit_s - time.perf_counter()
            return job.future.result()
        finally:
            job.future.cancel()

    def _send(self, jobs: list[_Job]) -> None:
        with self._lock:
            if self._process != os.getpid():  # forked: threads are not copied
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
            job.loop_side.return_job(job, is_last=self._jobs.empty())
            if job.is_given_up:
                return
            del job  # and with it the environment, which may be collected while this thread waits

    def _next(self) -> _Job | None:
        """The next job; None if the thread should end."""
        with suppress(queue.Empty):
            return self._jobs.get(timeout=self._idle_s)
        with self._lock:
            with suppress(queue.Empty):
                return self._jobs.get_nowait()  # it arrived meanwhile, and no thread was started for it
            self._running -= 1
            return None

    def _give_up(self, job: _Job) -> bool:
        """Replace the thread that runs the job; False if the job is done."""
        with self._lock:
            if job.is_done:
                return False
            job.is_given_up = True
            self._running -= 1
            if not self._jobs.empty():
                self._start()
            return True


_OF_ENVIRONMENTS: dict[int, StepThreads] = {}
"""By the id of the environment, while it exists: all users of an environment share its threads."""


def threads_of(environment: object) -> StepThreads:
    """The threads in which this environment is stepped, the same for all managers."""
    key = id(environment)
    found = _OF_ENVIRONMENTS.get(key)
    if found is None:
        found = StepThreads(f"environment {type(environment).__name__}")
        with suppress(TypeError):  # no weak references: its threads are not shared
            weakref.finalize(environment, _OF_ENVIRONMENTS.pop, key, None).atexit = False
            _OF_ENVIRONMENTS[key] = found
    return found
