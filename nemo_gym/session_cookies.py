"""Session cookies: their names, their values, and those that a run of an agent received.

The value is the session's id, followed by `k` once the server keeps something for the session. The mark is
part of the value so that it survives every agent that passes cookies along by name and value. A server that
keeps nothing needs no `close_session` call, and one that does not know a marked id has lost the session.
"""

import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from hashlib import sha256
from http.cookies import Morsel
from typing import Any, NamedTuple, Protocol

CLOSE_SESSION_PATH = "/close_session"
"""Reserved on every server with sessions: ends the session in the request's cookie; 204 also without one."""
SEED_SESSION_PATH = "/seed_session"
RUN_PATH = "/run"
BEGINNING_PATHS = (SEED_SESSION_PATH, RUN_PATH)
"""A request to one of these begins a session: with the cookie of an ended session it gets a new id."""
SESSION_HEADER = "x-nemo-gym-session"
"""Names a session that began in a nested call, so that the caller closes it. It sets no cookie."""

_PREFIX = "ng_session_"
_SESSION_HEADERS = ("set-cookie", SESSION_HEADER)
KEPT_MARK = "k"
_NOT_IN_A_COOKIE_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_VALUE = re.compile(r"((?:(\d+)w)?[0-9a-f]{32})(k?)")


def session_cookie_name(server_name: str) -> str:
    """The cookie that carries a server's session: one per instance, so that one jar serves a rollout."""
    plain = _NOT_IN_A_COOKIE_NAME.sub("_", server_name)
    if plain != server_name:
        plain = f"{plain}.{sha256(server_name.encode()).hexdigest()[:8]}"
    return f"{_PREFIX}{plain}"


class SessionCookie(NamedTuple):
    """What the value of a session cookie says."""

    session_id: str
    worker: int | None
    """The worker that holds the session; None if the server has only one."""
    is_kept: bool
    """Whether the server keeps something for the session, so that it has to be closed."""


def parse_session_cookie(cookie: "str | Morsel[str] | None") -> SessionCookie | None:
    """None for a value that no server of ours has set."""
    found = match_session_cookie(cookie)
    if found is None:
        return None
    session_id, worker, mark = found.groups()
    return SessionCookie(session_id, None if worker is None else int(worker), bool(mark))


def match_session_cookie(cookie: "str | Morsel[str] | None") -> "re.Match[str] | None":
    """The value of a session cookie: group 1 is the id, group 3 the mark.

    For code that runs in every request; `parse_session_cookie` is easier to read.
    """
    value = cookie if cookie is None or isinstance(cookie, str) else cookie.value
    return _VALUE.fullmatch(value) if value else None


def session_id_in(cookie: "str | Morsel[str] | None") -> str | None:
    """The id alone."""
    found = match_session_cookie(cookie)
    return None if found is None else found[1]


class Poster(Protocol):
    """The client that a session's cookie came through."""

    async def post(self, server_name: str, url_path: str, **kwargs: Any) -> Any: ...

    def server_of_cookie(self, cookie_name: str) -> str | None: ...


class ReceivedSession(NamedTuple):
    """A session that a server keeps for a run."""

    client: Poster
    server_name: str
    cookie_name: str
    cookie_value: str


class ReceivedSessions:
    """The sessions that began in one run of an agent and that a server keeps something for."""

    __slots__ = ("brought", "kept")

    def __init__(self, brought: Mapping[str, "str | Morsel[str]"]) -> None:
        self.brought = brought
        """The cookies of the request that started the run: these sessions belong to its caller."""
        self.kept: dict[str, ReceivedSession] = {}
        """By session id."""

    def note(self, client: Poster, headers: Sequence[tuple[str, str]]) -> None:
        """Take note of the sessions in the headers of a response."""
        for name, header in headers:
            # Nearly all are rejected by the first test.
            if "k;" in header and header.startswith(_PREFIX) and name.lower() in _SESSION_HEADERS:
                cookie_name, _, value = header.partition(";")[0].partition("=")
                self._note_kept(client, cookie_name, value)

    def _note_kept(self, client: Poster, cookie_name: str, value: str) -> None:
        cookie = parse_session_cookie(value)
        if cookie is None or not cookie.is_kept or cookie.session_id in self.kept:
            return
        brought = parse_session_cookie(self.brought.get(cookie_name))
        server_name = client.server_of_cookie(cookie_name)
        if server_name is not None and (brought is None or brought.session_id != cookie.session_id):
            self.kept[cookie.session_id] = ReceivedSession(client, server_name, cookie_name, value)


current_sessions: ContextVar[ReceivedSessions | None] = ContextVar("current_sessions", default=None)
"""Those of the run whose own code is running; None inside the servers that it calls."""
