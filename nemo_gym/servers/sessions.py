"""Sessions: one dictionary for each caller, kept on the server and found by the id in a cookie.

Invariant: two callers never see each other's session, and what an endpoint writes into its session is
there on the caller's next request. A session that holds nothing but its id costs no memory once the
request is over: the id alone brings it back.
"""

import logging
import re
import secrets
from collections import OrderedDict
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.servers.asgi import adding_header, cookies_of
from nemo_gym.types import SESSION_ID_KEY
from nemo_gym.undocumented.starlette_internals import parse_cookies

logger = logging.getLogger(__name__)

_SESSION_ID = re.compile(r"(?:\d+w)?[0-9a-f]{32}")


class Session(dict[str, Any]):
    """What `request.session` gives. The id stays even if an endpoint clears the dictionary."""

    __slots__ = ("id", "requests")

    def __init__(self, session_id: str) -> None:
        super().__init__({SESSION_ID_KEY: session_id})
        self.id = session_id
        self.requests = 0
        """How many requests use it right now."""

    @property
    def is_bare(self) -> bool:
        """Whether there is nothing in it but its id."""
        return len(self) == (SESSION_ID_KEY in self)


class SessionStore:
    """The sessions of one server. Every `open` has its `close`."""

    def __init__(self, cookie_name: str, *, worker: int | None = None, capacity: int = 65_536) -> None:
        self.cookie_name = cookie_name
        self._prefix = "" if worker is None else f"{worker}w"
        self._warned = False
        self._capacity = capacity
        """Sessions with content that are kept; beyond it the longest unused goes."""
        self._in_use: dict[str, Session] = {}
        self._kept: OrderedDict[str, Session] = OrderedDict()

    def identify(self, session_id: str | None) -> str:
        """The id that a request came with; a new one where there is none or not one of ours."""
        if session_id and _SESSION_ID.fullmatch(session_id):
            return session_id
        return self._prefix + secrets.token_hex(16)

    def holds(self, session_id: str) -> bool:
        """Whether there is more to the session than its id."""
        return session_id in self._in_use or session_id in self._kept

    def open(self, session_id: str | None) -> Session:
        """The session of a request that came with that id."""
        session_id = self.identify(session_id)
        session = self._in_use.get(session_id)
        if session is None:
            session = self._kept.get(session_id)
        if session is None:
            session = Session(session_id)
        session.setdefault(SESSION_ID_KEY, session_id)
        self._in_use[session_id] = session
        session.requests += 1
        return session

    def close(self, session: Session) -> None:
        """A request is over: a session with content outlives it."""
        session.requests -= 1
        if not session.requests:
            self._in_use.pop(session.id, None)
        if session.is_bare:
            self._kept.pop(session.id, None)
            return
        self._kept[session.id] = session
        self._kept.move_to_end(session.id)
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
            if not self._warned:
                logger.warning("%s: %d sessions hold data; the oldest go", self.cookie_name, self._capacity)
                self._warned = True

    def set_cookie(self, session_id: str) -> str:
        """The value of the Set-Cookie header, which stands on every answer."""
        return f"{self.cookie_name}={session_id}; Path=/; HttpOnly; SameSite=lax"

    def id_in(self, cookie_header: str) -> str | None:
        """The session id in a Cookie header."""
        if self.cookie_name not in cookie_header:
            return None
        return parse_cookies(cookie_header).get(self.cookie_name)


class SessionMiddleware:
    """Gives requests that go through the ASGI application their session."""

    def __init__(self, app: ASGIApp, store: SessionStore) -> None:
        self.app = app
        self.store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        session = self.store.open(self.store.id_in(cookies_of(scope)))
        scope["session"] = session
        cookie = self.store.set_cookie(session.id)
        try:
            await self.app(scope, receive, adding_header(send, "set-cookie", cookie))
        finally:
            self.store.close(session)


def add_sessions(app: FastAPI, store: SessionStore) -> None:
    """Give every caller of the application a session of its own."""
    app.add_middleware(SessionMiddleware, store=store)
    app.state.nemo_gym_sessions = store


def sessions_of(app: FastAPI) -> SessionStore | None:
    """The store that `add_sessions` gave to the application."""
    store = getattr(app.state, "nemo_gym_sessions", None)
    return store if isinstance(store, SessionStore) else None
