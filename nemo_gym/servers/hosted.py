"""A server as it is hosted: one object that answers both transports, in the same way.

Over HTTP it is the ASGI application that uvicorn serves; in this process the client calls it. Either way a
plain endpoint is called directly and anything else goes through the server's own FastAPI application.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from http.cookies import Morsel
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_gym.client import Call
from nemo_gym.errors import ComponentError
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
from nemo_gym.servers.direct_endpoint import (
    DataAnswer,
    DataResponse,
    Endpoint,
    NotDirectError,
    compile_endpoints,
    is_direct_supported,
)
from nemo_gym.servers.failure_responses import FailureMiddleware, Failures
from nemo_gym.servers.run_sessions import RUN_PATH
from nemo_gym.servers.session_middleware import close_session, is_close_session, sessions_of
from nemo_gym.servers.sessions import SessionStore
from nemo_gym.session_cookies import CLOSE_SESSION_PATH
from nemo_gym.undocumented.fastapi_internals import build_schemas
from nemo_gym.undocumented.starlette_internals import (
    headers_of,
    is_plain,
    lifespan,
    middleware_count,
    parse_cookies,
)

_JSON = ("content-type", "application/json")
BACKGROUND_S = 10.0
"""How long background tasks may go on once the server is to close."""


class HostedServer:
    """A server's application, ready to be served or called."""

    def __init__(self, name: str, app: FastAPI, secrets: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.failures = Failures(name, secrets)
        self.app = app
        _check_reserved(name, app)
        sessions = sessions_of(app)
        self.sessions = sessions.store if sessions is not None else SessionStore("")
        self.sessions.log_error = self.failures.log
        # A middleware of the environment's own must see every request.
        self._is_direct = sessions is not None and middleware_count(app) == 1
        self._endpoints = compile_endpoints(app) if self._is_direct else {}
        if not is_direct_supported():
            build_schemas(app)
        self._runs = sessions.runs if sessions is not None else None
        self._run_endpoint = self._endpoints.get(("POST", RUN_PATH))
        self.state: Mapping[str, Any] = {}
        self._background: set[asyncio.Task[None]] = set()
        """Tasks that go on after the answer to a caller of this process."""
        app.add_middleware(FailureMiddleware, failures=self.failures, sessions=self.sessions)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start-up and shutdown of the application, where it is not uvicorn that runs them."""
        async with lifespan(self.app) as state:
            self.state = state
            yield
            await self.sessions.end_all()
            if self._background:
                await asyncio.wait(self._background, timeout=BACKGROUND_S)

    @property
    def has_background(self) -> bool:
        """Whether tasks go on although their callers have been answered."""
        return bool(self._background)

    async def call(self, call: Call) -> ClientResponse:
        """Answer a caller of this process."""
        if self._is_direct and is_close_session(call.method, call.path):
            await close_session(self.sessions, call.cookies.get(self.sessions.cookie_name))
            return self._response(call, (204, [], b""))
        endpoint = None if call.query else self._endpoints.get((call.method, call.path))
        if endpoint is not None and (endpoint.body_field is None or call.is_json):
            try:
                arguments = endpoint.arguments(call.body)
            except NotDirectError:
                pass
            else:
                request = _LocalRequest(self, call)
                answer = await self._answer(endpoint, arguments, request)
                if request.answer is not None:
                    return DataResponse(request.answer, answer[1], call.method, self.name + call.path)
                return self._response(call, answer)
        collector = Collector()
        scope = local_scope(call, self.app, self.state)
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
            if self._is_direct and is_close_session(scope["method"], scope["path"]):
                await close_session(self.sessions, self.sessions.cookie_in(cookies_of(scope)))
                await send_answer(send, 204, [], b"")
                return
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
        request = _HttpRequest(self, scope, body, receive, send)
        await send_answer(send, *await self._answer(endpoint, arguments, request))

    async def _answer(self, endpoint: Endpoint, arguments: dict[str, Any], request: "_Request") -> Answer:
        """Call the endpoint; whatever it does becomes an answer."""
        run = None
        if self._runs is not None and endpoint is self._run_endpoint:
            run = self._runs.begin(request.cookies())
        try:
            if request.ended is not None:
                raise request.ended
            if endpoint.request_parameter is not None:
                arguments[endpoint.request_parameter] = request.build()
            carrier = endpoint.carrier(arguments)
            value = await endpoint.invoke(arguments)
            if isinstance(value, Response):
                self.failures.add_cause(value.headers, value.status_code)
                return await request.send(value)
            if carrier is None:
                return endpoint.status, [_JSON, request.cookie()], request.encode(endpoint, value)
            status = carrier.status_code or endpoint.status
            body = endpoint.encode(value, status)
            self.failures.add_cause(carrier.headers, status)
            return status, [_JSON, *carrier.headers.items(), request.cookie()], body
        except (Exception, SystemExit) as error:  # the boundary of a server: every failure becomes an answer
            return await request.send(await self.failures.respond_to(error, request.build()))
        finally:
            request.close()
            if run is not None:
                await run.end()


class _Request:
    """A request whose object is only built, and its session only opened, if somebody wants it."""

    __slots__ = ("_server", "_session", "ended", "session_id")

    def __init__(self, server: HostedServer, cookie: "str | Morsel[str] | None", path: str) -> None:
        sessions = server.sessions
        self._server = server
        self.session_id = sessions.identify(cookie, path)
        self.ended = sessions.ended(self.session_id)
        # One with content is in use from here on, so that it is not dropped meanwhile.
        self._session = sessions.open(self.session_id) if sessions.holds(self.session_id) else None

    def close(self) -> None:
        if self._session is not None:
            self._server.sessions.close(self._session)

    def cookie(self) -> tuple[str, str]:
        """The header that carries the session, as it is now."""
        return "set-cookie", self._server.sessions.set_cookie(self.session_id, self._session)

    def cookies(self) -> Mapping[str, str]:
        """All cookies that came with it."""
        raise NotImplementedError  # each transport has its own

    def encode(self, endpoint: Endpoint, value: Any) -> bytes:
        """The body of the answer."""
        return endpoint.encode(value, endpoint.status)

    def build(self) -> Request:
        if self._session is None:
            self._session = self._server.sessions.open(self.session_id)
        scope = self._scope()
        scope["session"] = self._session
        return Request(scope, self._receive())

    def _scope(self) -> Scope:
        raise NotImplementedError  # each transport has its own

    def _receive(self) -> Receive:
        raise NotImplementedError  # each transport has its own

    async def send(self, response: Response) -> Answer:
        """A response object as what it sends; its background task runs too, and cannot spoil the answer."""
        cookie = self.cookie()
        if is_plain(response):
            return response.status_code, [*headers_of(response), cookie], bytes(response.body)
        return await self._send_itself(response, cookie)

    async def _send_itself(self, response: Response, cookie: tuple[str, str]) -> Answer:
        raise NotImplementedError  # each transport has its own


class _LocalRequest(_Request):
    """One of a caller in this process."""

    __slots__ = ("_call", "answer")

    def __init__(self, server: HostedServer, call: Call) -> None:
        super().__init__(server, call.cookies.get(server.sessions.cookie_name), call.path)
        self._call = call
        self.answer: DataAnswer | None = None
        """Where the caller gets data without a body."""

    def encode(self, endpoint: Endpoint, value: Any) -> bytes:
        if endpoint.answer_data is None or type(value) is not dict:
            return super().encode(endpoint, value)
        self.answer = DataAnswer(endpoint, value, endpoint.shape_data(value))
        return b""

    def cookies(self) -> Mapping[str, str]:
        cookies = self._call.cookies
        return {name: one if isinstance(one, str) else one.value for name, one in cookies.items()}

    def _scope(self) -> Scope:
        return local_scope(self._call, self._server.app, self._server.state)

    def _receive(self) -> Receive:
        return receive_body(self._call.body)

    async def _send_itself(self, response: Response, cookie: tuple[str, str]) -> Answer:
        collector = Collector()
        send = adding_header(collector.send, *cookie)
        return await self._server.first_answer(response(self._scope(), self._receive(), send), collector)


class _HttpRequest(_Request):
    """One that came over HTTP: a response object sends itself, piece by piece if it streams."""

    __slots__ = ("_body", "_http_scope", "_pass_on", "_receive_more")

    def __init__(
        self,
        server: HostedServer,
        scope: Scope,
        body: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(server, server.sessions.cookie_in(cookies_of(scope)), scope["path"])
        self._http_scope = scope
        self._body = body
        self._receive_more = receive
        self._pass_on = send

    def cookies(self) -> Mapping[str, str]:
        return parse_cookies(cookies_of(self._http_scope))

    def _scope(self) -> Scope:
        return self._http_scope

    def _receive(self) -> Receive:
        return receive_body(self._body, self._receive_more)

    async def _send_itself(self, response: Response, cookie: tuple[str, str]) -> Answer:
        collector = Collector(self._pass_on)
        try:
            await response(self._scope(), self._receive(), adding_header(collector.send, *cookie))
        except Exception as error:  # the boundary of a server
            if not collector.status:
                raise
            self._server.failures.log(error)
        return 0, [], b""


def _check_reserved(name: str, app: FastAPI) -> None:
    if any(getattr(route, "path", None) == CLOSE_SESSION_PATH for route in app.routes):
        raise ComponentError(
            f"{name}: the route {CLOSE_SESSION_PATH} is reserved. To free what a session holds, define "
            "`async def close_session(self, session_id: str)` on the server; rename a tool of that name"
        )
