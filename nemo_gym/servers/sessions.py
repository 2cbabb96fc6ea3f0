"""Sessions: one dictionary per caller, kept on the server and found by the id in a cookie.

Invariants: two callers never see each other's session. What a route writes into its session is available
to the caller's next request. A session in use is never dropped. A dropped or closed session does not come
back empty: its id is refused, also after a restart of the server. A session that never contained more than
its id uses no memory between requests. Exception: a server that defines `close_session` keeps every session
that a route has used until the session ends.
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
from nemo_gym.session_cookies import BEGINNING_PATHS, KEPT_MARK, match_session_cookie
from nemo_gym.types import SESSION_ID_KEY
from nemo_gym.undocumented.starlette_internals import parse_cookies

logger = logging.getLogger(__name__)


class Session(dict[str, Any]):
    """The value of `request.session`. It keeps its id even if a route clears the dictionary."""

    __slots__ = ("id", "is_kept", "requests", "unused")

    def __init__(self, session_id: str) -> None:
        super().__init__({SESSION_ID_KEY: session_id})
        self.id = session_id
        self.is_kept = False
        """Whether it stays until it ends. Set for good: its cookie says so."""
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


@dataclass(frozen=True)
class SessionPolicy:
    """How many sessions and ids one server keeps."""

    capacity: int = 65_536
    """How many unused sessions are kept; beyond that, the longest unused one is dropped."""
    ended_ids: int = 8_192
    """How many ids of ended sessions are refused whatever their cookie says: late requests usually arrive
    soon after the end. A cookie that says that the session is kept is refused forever."""
    shutdown_s: float = 5.0
    """Time for the `close_session` of the sessions that are open when the server shuts down."""


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
        self.server_name = cookie_name
        """In log messages. A hosted server sets its own name."""
        self.log_error: Callable[[Exception], None] = self._log_error
        """Called with an exception that `close_session` raised."""
        self._policy = policy or SessionPolicy()
        self._prefix = "" if worker is None else f"{worker}w"
        self._close_session = close_session
        self._warned = False
        self._in_use: dict[str, Session] = {}
        self._kept: OrderedDict[str, Session] = OrderedDict()
        """Sessions that no request uses, the longest unused first."""
        self.ended_ids: OrderedDict[str, str] = OrderedDict()
        """Ids that are refused, the last ones only, each with the reason."""
        self._ending: dict[str, asyncio.Task[None]] = {}

    def identify(self, cookie: "str | Morsel[str] | None", path: str = "") -> str:
        """The session id of a request: the one in its cookie, or a new one if the cookie has no valid id.

        An id in `ended_ids` is refused. A request that begins a session gets a new id instead.
        """
        found = match_session_cookie(cookie)
        if found is None:
            return self.new_id()
        session_id, _, mark = found.groups()
        if mark and not self.holds(session_id) and session_id not in self.ended_ids:
            self._refuse(session_id, "is not known any more: it ended, or the server has restarted")
        if session_id in self.ended_ids and path in BEGINNING_PATHS:
            return self.new_id()
        return session_id

    def new_id(self) -> str:
        return self._prefix + secrets.token_hex(16)

    def ended(self, session_id: str) -> SessionEndedError:
        """The error for a request with an id in `ended_ids`."""
        return SessionEndedError(f"session {session_id} {self.ended_ids[session_id]}")

    def _refuse(self, session_id: str, reason: str) -> None:
        self.ended_ids[session_id] = reason
        if len(self.ended_ids) > self._policy.ended_ids:
            self.ended_ids.popitem(last=False)

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
            return
        if not self._keeps(session) or session.id in self.ended_ids:
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
        mark = KEPT_MARK if session is not None and self._keeps(session) else ""
        return f"{self.cookie_name}={session_id}{mark}; Path=/; HttpOnly; SameSite=lax"

    def cookie_in(self, cookie_header: str) -> str | None:
        """The value of this server's session cookie in a Cookie header."""
        if self.cookie_name not in cookie_header:
            return None
        return parse_cookies(cookie_header).get(self.cookie_name)

    def _keeps(self, session: Session) -> bool:
        if not session.is_kept and (self._close_session is not None or not session.is_bare):
            session.is_kept = True
        return session.is_kept

    def _evict(self) -> None:
        session_id, _ = self._kept.popitem(last=False)
        limit = self._policy.capacity
        self._refuse(session_id, f"was dropped: more than {limit} unused ones were open")
        if self._close_session is not None:
            self._create_ending(session_id, None)
        if not self._warned:
            logger.warning(
                "%s: more than %d unused sessions are open; those unused for longest are dropped. Close "
                "sessions with POST /close_session when they are no longer needed",
                self.server_name,
                limit,
            )
            self._warned = True

    def start_ending(self, session_id: str) -> "asyncio.Task[None] | None":
        """Refuse the id from now on; returns the task that ends the session, if one is needed or running."""
        if session_id in self._ending or session_id in self.ended_ids:
            return self._ending.get(session_id)
        session = self._in_use.get(session_id)
        is_known = session is not None or self._kept.pop(session_id, None) is not None
        self._refuse(session_id, "is closed")
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
        logger.error("%s: close_session failed", self.server_name, exc_info=error)
