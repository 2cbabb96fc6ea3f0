"""Sessions of requests that go through the ASGI application."""

from dataclasses import dataclass
from http.cookies import Morsel
from typing import NamedTuple

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.servers.asgi import SESSION_HEADERS_KEY, adding_headers, cookies_of, send_reply
from nemo_gym.servers.run_sessions import AgentRequest, RunSessions
from nemo_gym.servers.sessions import Session, SessionStore
from nemo_gym.session_cookies import CLOSE_SESSION_PATH, RUN_PATH, session_id_in
from nemo_gym.undocumented.starlette_internals import parse_cookies


class SessionMiddleware:
    """Gives requests their session and serves `POST /close_session`."""

    def __init__(self, app: ASGIApp, store: SessionStore, runs: RunSessions | None = None) -> None:
        self.app = app
        self.store = store
        self.runs = runs
        """For agents: closes the sessions that their runs received. None for other servers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, self._closing_on_shutdown(receive), send)
        else:
            await self.app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        cookies = cookies_of(scope)
        cookie = self.store.cookie_in(cookies)
        if is_close_session(scope["method"], scope["path"]):
            await close_session(self.store, cookie)
            await send_reply(send, (204, [], b""))
            return
        session_id = self.store.identify(cookie, scope["path"])
        if session_id in self.store.ended_ids:
            raise self.store.ended(session_id)
        session = scope["session"] = self.store.open(session_id)
        request: AgentRequest | None = None
        if self.runs is not None:
            is_run = scope["path"] == RUN_PATH and scope["method"] == "POST"
            request = self.runs.begin(parse_cookies(cookies), closes=is_run)
        is_new = session_id_in(cookie) != session_id
        exchange = _Exchange(self.store, session, is_new, request, scope, receive, send)
        scope[SESSION_HEADERS_KEY] = exchange.session_headers
        try:
            await self.app(scope, exchange.receive, adding_headers(exchange.send, exchange.session_headers))
        except Exception:
            exchange.has_responded = True  # with an error
            raise
        finally:
            self.store.close(session)
            if is_new and not exchange.has_responded and self.store.holds(session_id):
                self.store.start_ending(session_id)  # its caller does not know it
            if request is not None:
                request.leave(self.store, session.id)
                await request.close_sessions()

    def _closing_on_shutdown(self, receive: Receive) -> Receive:
        """A `receive` that ends all open sessions before the application shuts down."""

        async def receive_and_close() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.store.end_all()
            return message

        return receive_and_close


@dataclass(eq=False)
class _Exchange:
    """One request with a session, and its response."""

    store: SessionStore
    session: Session
    is_new: bool
    """Whether the session begins in this request."""
    agent_request: AgentRequest | None
    _scope: Scope
    _receive: Receive
    _send: Send
    has_responded: bool = False
    """Whether the response has begun, to a caller that is still there."""
    _is_body_read: bool = False

    def session_headers(self) -> list[tuple[str, str]]:
        own = ("set-cookie", self.store.set_cookie(self.session.id, self.session))
        return [own] if self.agent_request is None else [*self.agent_request.passed_on(), own]

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body"):
            self._is_body_read = True
        return message

    async def send(self, message: Message) -> None:
        """Send the end of the response only after the sessions of an agent run are closed."""
        if not self.has_responded:
            self.has_responded = not await self._is_caller_gone()
        if self.agent_request is not None and is_last(message):
            await self.agent_request.close_sessions()
        await self._send(message)

    async def _is_caller_gone(self) -> bool:
        # Only if it matters, and not before the body is read: to ask could lose a part of it.
        return self.is_new and self._is_body_read and await is_disconnected(self._scope, self._receive)


class AppSessions(NamedTuple):
    """The sessions that `add_sessions` added to an application."""

    store: SessionStore
    runs: RunSessions | None


def add_sessions(app: FastAPI, store: SessionStore, runs: RunSessions | None = None) -> None:
    """Give every caller of the application a session of its own."""
    app.add_middleware(SessionMiddleware, store=store, runs=runs)
    app.state.nemo_gym_sessions = AppSessions(store, runs)


def sessions_of(app: FastAPI) -> AppSessions | None:
    sessions = getattr(app.state, "nemo_gym_sessions", None)
    return sessions if isinstance(sessions, AppSessions) else None


async def is_disconnected(scope: Scope, receive: Receive) -> bool:
    """Whether the caller of a request has disconnected. Call it once the body is read."""
    return await Request(scope, receive).is_disconnected()


def is_last(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body")


def is_close_session(method: str, path: str) -> bool:
    return path == CLOSE_SESSION_PATH and method == "POST"


async def close_session(store: SessionStore, cookie: "str | Morsel[str] | None") -> None:
    """End the session that the cookie of a request to `/close_session` names."""
    session_id = session_id_in(cookie)
    if session_id is not None:
        await store.end(session_id)
