"""Sessions of requests that go through the ASGI application."""

from http.cookies import Morsel
from typing import NamedTuple

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.servers.asgi import SESSION_HEADERS_KEY, adding_headers, cookies_of, send_reply
from nemo_gym.servers.run_sessions import RUN_PATH, AgentRequest, RunSessions
from nemo_gym.servers.sessions import SessionStore
from nemo_gym.session_cookies import CLOSE_SESSION_PATH, session_id_in
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
        if ended := self.store.ended(session_id):
            raise ended
        session = self.store.open(session_id)
        scope["session"] = session
        request: AgentRequest | None = None
        if self.runs is not None:
            is_run = scope["path"] == RUN_PATH and scope["method"] == "POST"
            request = self.runs.begin(parse_cookies(cookies), closes=is_run)

        def session_headers() -> list[tuple[str, str]]:
            own = ("set-cookie", self.store.set_cookie(session.id, session))
            return [own] if request is None else [*request.passed_on(), own]

        async def send_when_closed(message: Message) -> None:
            """Send the end of the response only after the sessions of a run are closed."""
            if request is not None and is_last(message):
                await request.close_sessions()
            await send(message)

        scope[SESSION_HEADERS_KEY] = session_headers
        try:
            await self.app(scope, receive, adding_headers(send_when_closed, session_headers))
        finally:
            self.store.close(session)
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


def is_last(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body")


def is_close_session(method: str, path: str) -> bool:
    return path == CLOSE_SESSION_PATH and method == "POST"


async def close_session(store: SessionStore, cookie: "str | Morsel[str] | None") -> None:
    """End the session that the cookie of a request to `/close_session` names."""
    session_id = session_id_in(cookie)
    if session_id is not None:
        await store.end(session_id)
