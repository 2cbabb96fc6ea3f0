"""A server as it is hosted: one object that answers both transports, in the same way.

Over HTTP it is the ASGI application that uvicorn serves; in this process the client calls it. Either way a
plain endpoint is called directly and anything else goes through the server's own FastAPI application.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from http.cookies import Morsel
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_gym.client import Call
from nemo_gym.http import ClientResponse, ServerUnreachableError
from nemo_gym.servers.asgi import (
    Answer,
    Collector,
    adding_header,
    cookies_of,
    is_json,
    local_scope,
    read_body,
    receive_body,
    send_answer,
)
from nemo_gym.servers.endpoint import Endpoint, NotDirectError, compile_endpoints
from nemo_gym.servers.failures import FailureMiddleware, Failures
from nemo_gym.servers.sessions import Session, SessionStore

_JSON = ("content-type", "application/json")
BACKGROUND_S = 10.0
"""How long background tasks may go on once the server is to close."""


class HostedServer:
    """A server's application, ready to be served or called."""

    def __init__(self, name: str, app: FastAPI, secrets: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.failures = Failures(name, secrets)
        self.app = app
        store = _session_store(app)
        self.sessions = store or SessionStore("")
        # A middleware of the environment's own must see every request.
        only_ours = store is not None and len(app.user_middleware) == 1
        self._endpoints = compile_endpoints(app) if only_ours else {}
        self._state: Mapping[str, Any] = {}
        self._background: set[asyncio.Task[None]] = set()
        """Tasks that go on after the answer to a caller of this process."""
        app.add_middleware(FailureMiddleware, failures=self.failures, sessions=self.sessions)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start-up and shutdown of the application, where it is not uvicorn that runs them."""
        async with self.app.router.lifespan_context(self.app) as state:
            self._state = state or {}
            yield
            if self._background:
                await asyncio.wait(self._background, timeout=BACKGROUND_S)

    async def call(self, call: Call) -> ClientResponse:
        """Answer a caller of this process."""
        endpoint = None if call.query else self._endpoints.get((call.method, call.path))
        if endpoint is not None and (endpoint.body_field is None or call.is_json):
            try:
                arguments = endpoint.arguments(call.body)
            except NotDirectError:
                pass
            else:
                session = self.sessions.open(_session_id(call.cookies.get(self.sessions.cookie_name)))
                request = _Lazy(self, session, lambda: local_scope(call, self.app, self._state), call.body)
                return self._response(call, await self._answer(endpoint, arguments, request))
        collector = Collector()
        scope = local_scope(call, self.app, self._state)
        answering = self.app(scope, receive_body(call.body), collector.send)
        return self._response(call, await self.first_answer(answering, collector))

    async def first_answer(self, answering: Coroutine[Any, Any, None], collector: Collector) -> Answer:
        """What an application sends, as soon as it is whole: a background task goes on by itself."""
        task = asyncio.ensure_future(answering)
        whole = asyncio.ensure_future(collector.whole.wait())
        try:
            await asyncio.wait({task, whole}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            whole.cancel()
        if not task.done():
            self._background.add(task)
            task.add_done_callback(self._end_background)
        elif error := task.exception():
            if not collector.status or not isinstance(error, Exception):
                raise error
            self.failures.log(error)
        return collector.answer()

    def _end_background(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.failures.log(error)

    def _response(self, call: Call, answer: Answer) -> ClientResponse:
        status, headers, body = answer
        if not status:
            raise ServerUnreachableError(self.name, f"the answer to {call.method} {call.path} broke off")
        return ClientResponse(status, headers, body, method=call.method, url=self.name + call.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a caller over HTTP."""
        endpoint = None
        if scope["type"] == "http" and not scope["query_string"]:
            endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None or (endpoint.body_field is not None and not is_json(scope)):
            await self.app(scope, receive, send)
            return
        body = await read_body(receive)
        if body is None:
            return
        try:
            arguments = endpoint.arguments(body)
        except NotDirectError:
            await self.app(scope, receive_body(body, receive), send)
            return
        scope["app"] = self.app
        session = self.sessions.open(self.sessions.id_in(cookies_of(scope)))
        request = _LazyOverHttp(self, session, scope, body, receive, send)
        await send_answer(send, *await self._answer(endpoint, arguments, request))

    async def _answer(self, endpoint: Endpoint, arguments: dict[str, Any], request: "_Lazy") -> Answer:
        """Call the endpoint; whatever it does becomes an answer."""
        cookie = ("set-cookie", self.sessions.set_cookie(request.session))
        try:
            if endpoint.request_parameter is not None:
                arguments[endpoint.request_parameter] = request.build()
            status, body, response = await endpoint.call(arguments)
            if response is None:
                return status, [_JSON, cookie], body or b""
            self.failures.add_cause(response.headers, status)
            if body is not None:  # the response only carries headers for it
                return status, [_JSON, *response.headers.items(), cookie], body
            return await request.send(response, cookie)
        except Exception as error:  # the boundary of a server: every failure becomes an answer
            response = await self.failures.respond_to(error, request.build())
            return await request.send(response, cookie)
        finally:
            self.sessions.close(request.session)


class _Lazy:
    """A request whose object is only built if somebody wants it."""

    __slots__ = ("_body", "_make_scope", "_server", "session")

    def __init__(
        self, server: HostedServer, session: Session, make_scope: Callable[[], Scope], body: bytes
    ) -> None:
        self.session = session
        self._server = server
        self._make_scope = make_scope
        self._body = body

    def build(self) -> Request:
        scope = self._make_scope()
        scope["session"] = self.session
        return Request(scope, self._receive())

    def _receive(self) -> Receive:
        return receive_body(self._body)

    async def send(self, response: Response, cookie: tuple[str, str]) -> Answer:
        """A response object as what it sends; its background task runs too, and cannot spoil the answer."""
        if type(response).__call__ is Response.__call__ and response.background is None:
            status, headers, body = response.status_code, response.headers.items(), bytes(response.body)
            return status, [*(pair for pair in headers if pair[0] != "content-length"), cookie], body
        return await self._send_itself(response, cookie)

    async def _send_itself(self, response: Response, cookie: tuple[str, str]) -> Answer:
        collector = Collector()
        send = adding_header(collector.send, *cookie)
        return await self._server.first_answer(response(self._make_scope(), self._receive(), send), collector)


class _LazyOverHttp(_Lazy):
    """One that came over HTTP: a response object sends itself, piece by piece if it streams."""

    __slots__ = ("_pass_on", "_receive_more")

    def __init__(
        self, server: HostedServer, session: Session, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        super().__init__(server, session, lambda: scope, body)
        self._receive_more = receive
        self._pass_on = send

    def _receive(self) -> Receive:
        return receive_body(self._body, self._receive_more)

    async def _send_itself(self, response: Response, cookie: tuple[str, str]) -> Answer:
        collector = Collector(self._pass_on)
        try:
            await response(self._make_scope(), self._receive(), adding_header(collector.send, *cookie))
        except Exception as error:  # the boundary of a server
            if not collector.status:
                raise
            self._server.failures.log(error)
        return 0, [], b""


def _session_id(cookie: "str | Morsel[str] | None") -> str | None:
    return cookie if cookie is None or isinstance(cookie, str) else cookie.value


def _session_store(app: FastAPI) -> SessionStore | None:
    for entry in app.user_middleware:
        store = entry.kwargs.get("store")
        if isinstance(store, SessionStore):
            return store
    return None
