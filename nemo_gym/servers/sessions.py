"""Sessions: one dictionary per caller, kept on the server and found by the id in a cookie.

Invariants: two callers never see each other's session. What a route writes into its session is available
to the caller's next request. A session in use is never dropped. A dropped or closed session does not come
back empty: its id is refused. A session that contains only its id uses no memory between requests. Exception:
a server that defines `close_session` keeps every session that a route has used until the session ends.
"""

import asyncio
import inspect
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import Morsel
from typing import Any

from starlette.concurrency import run_in_threadpool

from nemo_gym.activity import current_activity
from nemo_gym.failures import FailureKind
from nemo_gym.session_cookies import KEPT_MARK, SEED_SESSION_PATH, session_id_in
from nemo_gym.types import SESSION_ID_KEY
from nemo_gym.undocumented.starlette_internals import parse_cookies

logger = logging.getLogger(__name__)


class Session(dict[str, Any]):
    """The value of `request.session`. It keeps its id even if a route clears the dictionary."""

    __slots__ = ("id", "requests", "unused")

    def __init__(self, session_id: str) -> None:
        super().__init__({SESSION_ID_KEY: session_id})
        self.id = session_id
        self.requests = 0
        """How many requests use it now."""
        self.unused: asyncio.Event | None = None
        """Set when no request uses it any more; None unless a task waits for that."""

    @property
    def is_bare(self) -> bool:
        """Whether it contains only its id."""
        return len(self) == (SESSION_ID_KEY in self)


class SessionEndedError(Exception):
    """A request has the id of a session that has ended. A new attempt begins a new session."""

    kind = FailureKind.INFRASTRUCTURE


@dataclass(frozen=True)
class SessionPolicy:
    """How many sessions and ids one server keeps."""

    capacity: int = 65_536
    """How many unused sessions are kept; beyond that, the longest unused one is dropped."""
    evicted_ids: int = 65_536
    """How many ids of dropped sessions are refused later; about 200 bytes each."""
    closed_ids: int = 8_192
    """How many ids of closed sessions are refused later. Late requests usually arrive soon after it."""
    shutdown_s: float = 5.0
    """Time for the `close_session` of the sessions that are open when the server shuts down."""


class _RecentIds(OrderedDict[str, None]):
    """The ids added last, up to a limit. Keeps `all_ids` in step."""

    def __init__(self, limit: int, all_ids: set[str]) -> None:
        super().__init__()
        self._limit = limit
        self._all_ids = all_ids

    def add(self, session_id: str) -> None:
        self[session_id] = None
        self._all_ids.add(session_id)
        if len(self) > self._limit:
            self._all_ids.discard(self.popitem(last=False)[0])


class SessionStore:
    """The sessions of one server. Every `open` has its `close`; `end` ends a session for good."""

    def __init__(
        self,
        cookie_name: str,
        *,
        worker: int | None = None,
        policy: SessionPolicy | None = None,
        close_session: Callable[[str], Any] | None = None,
    ) -> None:
        self.cookie_name = cookie_name
        self.log_error: Callable[[Exception], None] = self._log_error
        """Called with an exception that `close_session` raised."""
        self._policy = policy or SessionPolicy()
        self._prefix = "" if worker is None else f"{worker}w"
        self._close_session = close_session
        self._warned = False
        self._in_use: dict[str, Session] = {}
        self._kept: OrderedDict[str, Session] = OrderedDict()
        """Sessions that no request uses, the longest unused first."""
        self.ended_ids: set[str] = set()
        """Ids that are refused."""
        self._evicted = _RecentIds(self._policy.evicted_ids, self.ended_ids)
        self._closed = _RecentIds(self._policy.closed_ids, self.ended_ids)
        self._ending: dict[str, asyncio.Task[None]] = {}

    def identify(self, cookie: "str | Morsel[str] | None", path: str = "") -> str:
        """The session id of a request: the one in its cookie, or a new one if the cookie has no valid id.

        A request to `/seed_session` gets a new id if the session of its cookie has ended.
        """
        session_id = session_id_in(cookie)
        if session_id is None or (path == SEED_SESSION_PATH and session_id in self.ended_ids):
            return self.new_id()
        return session_id

    def new_id(self) -> str:
        return self._prefix + secrets.token_hex(16)

    def ended(self, session_id: str) -> SessionEndedError | None:
        """The error for a request with this id; None if the session has not ended."""
        if session_id in self._closed:
            return SessionEndedError(f"session {session_id} is closed")
        if session_id in self._evicted:
            limit = self._policy.capacity
            return SessionEndedError(
                f"session {session_id} was dropped: more than {limit} unused ones were open"
            )
        return None

    def __len__(self) -> int:
        return len(self._in_use) + len(self._kept)

    def holds(self, session_id: str) -> bool:
        """Whether the session is in use or kept."""
        return session_id in self._in_use or session_id in self._kept

    def open(self, session_id: str) -> Session:
        """The session with an id that `identify` returned."""
        session = self._in_use.get(session_id)
        if session is None:
            session = self._kept.pop(session_id, None) or Session(session_id)
            self._in_use[session_id] = session
        session.setdefault(SESSION_ID_KEY, session_id)
        session.requests += 1
        return session

    def close(self, session: Session) -> None:
        """Call when a request has ended. The session is kept if it has content or needs `close_session`."""
        session.requests -= 1
        if session.requests:
            return
        self._in_use.pop(session.id, None)
        if session.unused is not None:
            session.unused.set()
        if not self._is_kept(session) or session.id in self.ended_ids:
            return
        self._kept[session.id] = session
        if len(self._kept) > self._policy.capacity:
            self._evict()

    async def end(self, session_id: str) -> None:
        """End a session after the requests that use it; do nothing if it does not exist."""
        ending = self.start_ending(session_id)
        if ending is not None:  # continues if the caller is cancelled
            await asyncio.shield(ending)

    async def end_all(self) -> None:
        """At shutdown: end every session for which `close_session` must be called."""
        if self._close_session is not None:
            for session_id in [*self._kept, *self._in_use]:
                self.start_ending(session_id)
        if self._ending:
            await asyncio.wait(self._ending.values(), timeout=self._policy.shutdown_s)

    def set_cookie(self, session_id: str, session: Session | None) -> str:
        """The value of the Set-Cookie header, which is on every response."""
        mark = KEPT_MARK if session is not None and self._is_kept(session) else ""
        return f"{self.cookie_name}={session_id}{mark}; Path=/; HttpOnly; SameSite=lax"

    def cookie_in(self, cookie_header: str) -> str | None:
        """The value of this server's session cookie in a Cookie header."""
        if self.cookie_name not in cookie_header:
            return None
        return parse_cookies(cookie_header).get(self.cookie_name)

    def _is_kept(self, session: Session) -> bool:
        return self._close_session is not None or not session.is_bare

    def _evict(self) -> None:
        session_id, _ = self._kept.popitem(last=False)
        self._evicted.add(session_id)
        if self._close_session is not None:
            self._create_ending(session_id, None)
        if not self._warned:
            logger.warning(
                "%s: more than %d unused sessions are open; the longest unused are dropped",
                self.cookie_name,
                self._policy.capacity,
            )
            self._warned = True

    def start_ending(self, session_id: str) -> "asyncio.Task[None] | None":
        """Refuse the id from now on; returns the task that ends the session, if one is needed or running."""
        if session_id in self._ending or session_id in self.ended_ids:
            return self._ending.get(session_id)
        session = self._in_use.get(session_id)
        is_known = session is not None or self._kept.pop(session_id, None) is not None
        self._closed.add(session_id)
        if session is None and (self._close_session is None or not is_known):
            return None
        return self._create_ending(session_id, session)

    def _create_ending(self, session_id: str, session: Session | None) -> "asyncio.Task[None]":
        """A separate task, so that `close_session` is not cancelled with the request that caused it."""
        ending = asyncio.create_task(self._finish(session_id, session))
        self._ending[session_id] = ending
        ending.add_done_callback(lambda _: self._ending.pop(session_id, None))
        return ending

    async def _finish(self, session_id: str, session: Session | None) -> None:
        current_activity.set(None)  # not part of the rollout any more
        if session is not None and session.requests:
            session.unused = asyncio.Event()
            await session.unused.wait()
        if self._close_session is None:
            return
        try:
            if inspect.iscoroutinefunction(self._close_session):
                await self._close_session(session_id)
            else:
                await run_in_threadpool(self._close_session, session_id)
        except Exception as error:  # the boundary to an environment's own code
            self.log_error(error)

    def _log_error(self, error: Exception) -> None:
        logger.error("%s: close_session failed", self.cookie_name, exc_info=error)
