"""A hosted server: one object for both sides of a transport.

Over HTTP it is the ASGI application that uvicorn serves; in this process it is the transport of the client.
Either way a plain endpoint is called directly and anything else goes through the server's own FastAPI
application, so the response is the same.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from http.cookies import Morsel
from typing import Any, Generic, TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_gym.errors import ComponentError
from nemo_gym.http import Call, ClientResponse, Cookies, ServerUnreachableError
from nemo_gym.servers.asgi import (
    Collector,
    Reply,
    adding_headers,
    cookies_of,
    is_json,
    local_scope,
    read_body,
    receive_body,
    send_reply,
)
from nemo_gym.servers.direct_endpoint import (
    DataResponse,
    Endpoint,
    NotDirectError,
    ResponseData,
    compile_endpoints,
    is_direct_supported,
)
from nemo_gym.servers.failure_responses import FailureMiddleware, Failures
from nemo_gym.servers.run_sessions import RUN_PATH, AgentRequest
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
"""How long background tasks may run once the server closes."""

R = TypeVar("R")
"""What a request ends with: the response of a caller in this process, or what is to be sent over HTTP."""


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
        """Tasks that run on after the response to a caller in this process."""
        app.add_middleware(FailureMiddleware, failures=self.failures)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start-up and shutdown of the application, unless uvicorn runs them."""
        async with lifespan(self.app) as state:
            self.state = state
            yield
            await self.sessions.end_all()
            if self._background:
                await asyncio.wait(self._background, timeout=BACKGROUND_S)

    @property
    def has_background(self) -> bool:
        """Whether tasks run whose callers have their response already."""
        return bool(self._background)

    def send(self, call: Call) -> Coroutine[Any, Any, ClientResponse]:
        """The response to a caller in this process: `http.transport.Transport`."""
        endpoint = None if call.query else self._endpoints.get((call.method, call.path))
        if endpoint is not None and (endpoint.body_field is None or call.is_json):
            try:
                arguments = endpoint.arguments(call.body)
            except NotDirectError:
                pass
            else:
                return self._respond(endpoint, arguments, _LocalRequest(self, call))
        if self._is_direct and is_close_session(call.method, call.path):
            return self._close_session(call)
        return self._send_through_app(call)

    async def _close_session(self, call: Call) -> ClientResponse:
        await close_session(self.sessions, call.cookies.get(self.sessions.cookie_name))
        return self.response(call, (204, [], b""))

    async def _send_through_app(self, call: Call) -> ClientResponse:
        collector = Collector()
        scope = local_scope(call, self.app, self.state)
        responding = self.app(scope, receive_body(call.body), collector.send)
        return self.response(call, await self.first_reply(responding, collector))

    async def first_reply(self, responding: Coroutine[Any, Any, None], collector: Collector) -> Reply:
        """What an application sends, as soon as it is whole; its background task runs on."""
        task = asyncio.ensure_future(responding)
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
        return collector.reply()

    def _end_background(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.failures.log(error)

    def response(self, call: Call, reply: Reply) -> ClientResponse:
        """A reply as the response to a call."""
        status, headers, body = reply
        if not status:
            reason = f"the response to {call.method} {call.path} was cut off"
            raise ServerUnreachableError(self.name, reason)
        return ClientResponse(status, headers, body, method=call.method, url=self.name + call.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a caller over HTTP."""
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
        request = _HttpRequest(self, scope, body, receive, send)
        await send_reply(send, await self._respond(endpoint, arguments, request))

    async def _respond(self, endpoint: Endpoint, arguments: dict[str, Any], request: "_Request[R]") -> R:
        """Call the endpoint; its result, or whatever it raises, becomes a response."""
        if self._runs is not None:
            request.agent_request = self._runs.begin(request.cookies(), closes=endpoint is self._run_endpoint)
        reply: Reply
        try:
            if request.ended is not None:
                raise request.ended
            if endpoint.request_parameter is not None:
                arguments[endpoint.request_parameter] = request.build()
            carrier = endpoint.carrier(arguments)
            value = await endpoint.invoke(arguments)
            if isinstance(value, Response):
                self.failures.add_cause(value.headers, value.status_code)
                reply = await request.send(value)
            elif carrier is None:
                reply = endpoint.status, [_JSON, *request.set_cookies()], request.encode(endpoint, value)
            else:
                status = carrier.status_code or endpoint.status
                body = endpoint.encode(value, status)
                self.failures.add_cause(carrier.headers, status)
                reply = status, [_JSON, *carrier.headers.items(), *request.set_cookies()], body
        except (Exception, SystemExit) as error:  # the boundary of a server: every failure becomes a response
            reply = await request.send(await self.failures.respond_to(error, request.build()))
        finally:
            request.close()
            if request.agent_request is not None:
                await request.agent_request.end()
        return request.respond(reply)


class _Request(Generic[R]):
    """A request. Its object is built, and its session opened, only if the endpoint asks for it.

    Each transport has its own subclass, which makes of a reply what that transport's caller gets.
    """

    __slots__ = ("_server", "_session", "agent_request", "ended", "session_id")

    def __init__(self, server: HostedServer, cookie: "str | Morsel[str] | None", path: str) -> None:
        sessions = server.sessions
        self._server = server
        self.agent_request: AgentRequest | None = None
        self.session_id = sessions.identify(cookie, path)
        self.ended = sessions.ended(self.session_id) if self.session_id in sessions.ended_ids else None
        # A session with content is in use from here on, so that it is not dropped meanwhile.
        self._session = sessions.open(self.session_id) if sessions.holds(self.session_id) else None

    def close(self) -> None:
        if self._session is not None:
            self._server.sessions.close(self._session)

    def set_cookies(self) -> list[tuple[str, str]]:
        """The headers that carry the session, as it is now, and those of other servers that are passed on."""
        own = ("set-cookie", self._server.sessions.set_cookie(self.session_id, self._session))
        return [own] if self.agent_request is None else [*self.agent_request.passed_on(), own]

    def cookies(self) -> Cookies:
        """All cookies that came with it."""
        raise NotImplementedError  # each transport has its own

    def build(self) -> Request:
        if self._session is None:
            self._session = self._server.sessions.open(self.session_id)
        scope = self._scope()
        scope["session"] = self._session
        return Request(scope, self._receive())

    def respond(self, reply: Reply) -> R:
        raise NotImplementedError  # each transport has its own

    def encode(self, endpoint: Endpoint, value: Any) -> bytes:
        """The body of the response."""
        return endpoint.encode(value, endpoint.status)

    async def send(self, response: Response) -> Reply:
        """A response object of the endpoint. If its background task fails, the response is the same."""
        if is_plain(response):
            headers = [*headers_of(response), *self.set_cookies()]
            return response.status_code, headers, bytes(response.body)
        return await self._send_itself(response)

    def _scope(self) -> Scope:
        raise NotImplementedError  # each transport has its own

    def _receive(self) -> Receive:
        raise NotImplementedError  # each transport has its own

    async def _send_itself(self, response: Response) -> Reply:
        raise NotImplementedError  # each transport has its own


class _LocalRequest(_Request[ClientResponse]):
    """A request of a caller in this process."""

    __slots__ = ("_call", "_data")

    def __init__(self, server: HostedServer, call: Call) -> None:
        super().__init__(server, call.cookies.get(server.sessions.cookie_name), call.path)
        self._call = call
        self._data: ResponseData | None = None
        """The response of an endpoint on plain data, which has no body yet."""

    def encode(self, endpoint: Endpoint, value: Any) -> bytes:
        if endpoint.response_data is None or type(value) is not dict:
            return super().encode(endpoint, value)
        self._data = ResponseData(endpoint, value, endpoint.shape_data(value))
        return b""

    def respond(self, reply: Reply) -> ClientResponse:
        if self._data is None:
            return self._server.response(self._call, reply)
        return DataResponse(self._data, reply[1], self._call.method, self._server.name + self._call.path)

    def cookies(self) -> Cookies:
        return self._call.cookies

    def _scope(self) -> Scope:
        return local_scope(self._call, self._server.app, self._server.state)

    def _receive(self) -> Receive:
        return receive_body(self._call.body)

    async def _send_itself(self, response: Response) -> Reply:
        collector = Collector()
        send = adding_headers(collector.send, self.set_cookies)
        return await self._server.first_reply(response(self._scope(), self._receive(), send), collector)


class _HttpRequest(_Request[Reply]):
    """A request over HTTP: a response object sends itself, piece by piece if it streams."""

    __slots__ = ("_body", "_http_scope", "_pass_on", "_receive_more")

    def __init__(self, server: HostedServer, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        super().__init__(server, server.sessions.cookie_in(cookies_of(scope)), scope["path"])
        self._http_scope = scope
        self._body = body
        self._receive_more = receive
        self._pass_on = send

    def cookies(self) -> Cookies:
        return parse_cookies(cookies_of(self._http_scope))

    def respond(self, reply: Reply) -> Reply:
        return reply

    def _scope(self) -> Scope:
        return self._http_scope

    def _receive(self) -> Receive:
        return receive_body(self._body, self._receive_more)

    async def _send_itself(self, response: Response) -> Reply:
        collector = Collector(self._pass_on)
        try:
            await response(self._scope(), self._receive(), adding_headers(collector.send, self.set_cookies))
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
