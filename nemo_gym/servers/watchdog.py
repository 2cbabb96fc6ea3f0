"""The watchdog: a thread that notices when the code of an environment blocks the event loop.

A verifier that computes for seconds holds up every rollout of its process. The watchdog names the server, the
function and the place, once per place. It costs one callback per check.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from nemo_gym.servers.hosted import HostedServer

logger = logging.getLogger(__name__)

_KINDS = ("resources_servers.", "responses_api_agents.", "responses_api_models.")
_SHOWN = 5
"""Lines of the stack in a warning: the innermost."""


@dataclass(frozen=True)
class WatchdogPolicy:
    """When a blocked event loop is noticed."""

    check_s: float = 0.5
    """Time between two checks."""
    blocked_s: float = 2.0
    """A loop that does not respond for this long, while the same task runs, is blocked."""


_POLICY = WatchdogPolicy()


@dataclass(frozen=True)
class BlockedLoop:
    """What the thread of a blocked event loop is doing."""

    seconds: float
    server: str
    """The name of the instance; empty if the code runs outside a request."""
    function: str
    """The function that serves the request."""
    place: str
    """`app.py:17 in score`: the innermost code of a component."""
    stack: str
    task: "asyncio.Task[Any] | None"
    """The task that runs."""

    def __str__(self) -> str:
        where = f"{self.server}: {self.function}" if self.server else "the code of a component"
        return f"{where} has blocked the event loop for {self.seconds:.0f} s at {self.place}"


@contextmanager
def watching(on_blocked: Callable[[BlockedLoop], None], policy: WatchdogPolicy = _POLICY) -> Iterator[None]:
    """Watch the running event loop; `on_blocked` is called in a thread, at each check while it is blocked."""
    watchdog = _Watchdog(asyncio.get_running_loop(), on_blocked, policy)
    thread = threading.Thread(target=watchdog.watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.is_over.set()


class BlockedWarnings:
    """Logs one warning per place."""

    def __init__(self) -> None:
        self._places: set[tuple[str, str]] = set()

    def __call__(self, blocked: BlockedLoop) -> None:
        if (blocked.server, blocked.place) not in self._places:
            self._places.add((blocked.server, blocked.place))
            logger.warning(
                "%s; meanwhile nothing else runs in this process. %s\n%s", blocked, _ADVICE, blocked.stack
            )


_ADVICE = (
    "If it is `verify`, set `verify_in: thread` or `process` for this server; otherwise make the function a "
    "plain `def`, which runs in a thread. With +executor=processes, only the rollouts of one worker wait"
)


class _Watchdog:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_blocked: Callable[[BlockedLoop], None],
        policy: WatchdogPolicy,
    ) -> None:
        self.is_over = threading.Event()
        self._loop = loop
        self._thread = threading.get_ident()
        self._on_blocked = on_blocked
        self._policy = policy
        self._asked: float | None = None
        """When the loop was asked to respond; None once it has."""
        self._task: asyncio.Task[Any] | None = None
        self._since = 0.0
        """Since when, as far as is known, this task has been running while the loop does not respond."""

    def watch(self) -> None:
        while not self.is_over.wait(self._policy.check_s):
            now, task = time.monotonic(), asyncio.current_task(self._loop)
            has_responded = self._asked is None
            if has_responded or task is not self._task:  # other tasks run: the loop is only busy
                self._task, self._since = task, now
            if has_responded:
                self._asked = now
                try:
                    self._loop.call_soon_threadsafe(self._respond)
                except RuntimeError:  # the loop is closed
                    return
            elif now - self._since >= self._policy.blocked_s:
                blocked = self._look(now - self._since)
                if blocked is not None:
                    self._on_blocked(blocked)

    def _respond(self) -> None:
        self._asked = None

    def _look(self, seconds: float) -> BlockedLoop | None:
        """What the loop's thread does; None if it runs no code of a component, but the machine is slow."""
        frame = sys._current_frames().get(self._thread)
        frames = list(traceback.walk_stack(frame))
        own = next((one for one, _ in frames if str(one.f_globals.get("__name__")).startswith(_KINDS)), None)
        if own is None or self._asked is None:
            return None
        server, function = _request_in(one for one, _ in frames)
        place = f"{own.f_code.co_filename}:{own.f_lineno} in {own.f_code.co_name}"
        stack = "".join(traceback.StackSummary.extract(reversed(frames[:_SHOWN])).format())
        return BlockedLoop(seconds, server, function, place, stack, asyncio.current_task(self._loop))


def _request_in(frames: Iterator[FrameType]) -> tuple[str, str]:
    """The server and the function of the innermost request in a stack; empty if there is none."""
    for frame in frames:
        server = frame.f_locals.get("self")
        if isinstance(server, HostedServer):
            function = getattr(frame.f_locals.get("route"), "function", None)
            return server.name, getattr(function, "__qualname__", "a request")
    return "", ""
