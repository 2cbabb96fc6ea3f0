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
)
from nemo_gym.servers.failure_responses import FailureMiddleware, Failures
from nemo_gym.servers.sessions import SessionStore, sessions_of
from nemo_gym.undocumented.starlette_internals import headers_of, is_plain, lifespan, middleware_count

_JSON = ("content-type", "application/json")
BACKGROUND_S = 10.0
"""How long background tasks may go on once the server is to close."""


class HostedServer:
    """A server's application, ready to be served or called."""

    def __init__(self, name: str, app: FastAPI, secrets: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.failures = Failures(name, secrets)
        self.app = app
        store = sessions_of(app)
        self.sessions = store or SessionStore("")
        # A middleware of the environment's own must see every request.
        only_ours = store is not None and middleware_count(app) == 1
        self._endpoints = compile_endpoints(app) if only_ours else {}
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
            if self._background:
                await asyncio.wait(self._background, timeout=BACKGROUND_S)

    @property
    def has_background(self) -> bool:
        """Whether tasks go on although their callers have been answered."""
        return bool(self._background)

    async def call(self, call: Call) -> ClientResponse:
        """Answer a caller of this process."""
        endpoint = None if call.query else self._endpoints.get((call.method, call.path))
        if endpoint is not None and (endpoint.body_field is None or call.is_json):
            try:
                arguments = endpoint.arguments(call.body)
            except NotDirectError:
                pass
            else:
                session_id = _session_id(call.cookies.get(self.sessions.cookie_name))
                request = _LocalRequest(self, session_id, call)
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
        session_id = self.sessions.id_in(cookies_of(scope))
        request = _HttpRequest(self, session_id, scope, body, receive, send)
        await send_answer(send, *await self._answer(endpoint, arguments, request))

    async def _answer(self, endpoint: Endpoint, arguments: dict[str, Any], request: "_Request") -> Answer:
        """Call the endpoint; whatever it does becomes an answer."""
        cookie = ("set-cookie", self.sessions.set_cookie(request.session_id))
        try:
            if endpoint.request_parameter is not None:
                arguments[endpoint.request_parameter] = request.build()
            carrier = endpoint.carrier(arguments)
            value = await endpoint.invoke(arguments)
            if isinstance(value, Response):
                self.failures.add_cause(value.headers, value.status_code)
                return await request.send(value, cookie)
            if carrier is None:
                return endpoint.status, [_JSON, cookie], request.encode(endpoint, value)
            status = carrier.status_code or endpoint.status
            body = endpoint.encode(value, status)
            self.failures.add_cause(carrier.headers, status)
            return status, [_JSON, *carrier.headers.items(), cookie], body
        except (Exception, SystemExit) as error:  # the boundary of a server: every failure becomes an answer
            response = await self.failures.respond_to(error, request.build())
            return await request.send(response, cookie)
        finally:
            request.close()


class _Request:
    """A request whose object is only built, and its session only opened, if somebody wants it."""

    __slots__ = ("_server", "_session", "session_id")

    def __init__(self, server: HostedServer, session_id: str | None) -> None:
        sessions = server.sessions
        self._server = server
        self.session_id = sessions.identify(session_id)
        # One with content is in use from here on, so that it is not dropped meanwhile.
        self._session = sessions.open(self.session_id) if sessions.holds(self.session_id) else None

    def close(self) -> None:
        if self._session is not None:
            self._server.sessions.close(self._session)

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

    async def send(self, response: Response, cookie: tuple[str, str]) -> Answer:
        """A response object as what it sends; its background task runs too, and cannot spoil the answer."""
        if is_plain(response):
            return response.status_code, [*headers_of(response), cookie], bytes(response.body)
        return await self._send_itself(response, cookie)

    async def _send_itself(self, response: Response, cookie: tuple[str, str]) -> Answer:
        raise NotImplementedError  # each transport has its own


class _LocalRequest(_Request):
    """One of a caller in this process."""

    __slots__ = ("_call", "answer")

    def __init__(self, server: HostedServer, session_id: str | None, call: Call) -> None:
        super().__init__(server, session_id)
        self._call = call
        self.answer: DataAnswer | None = None
        """Where the caller gets data without a body."""

    def encode(self, endpoint: Endpoint, value: Any) -> bytes:
        if endpoint.answer_data is None or type(value) is not dict:
            return super().encode(endpoint, value)
        self.answer = DataAnswer(endpoint, value, endpoint.shape_data(value))
        return b""

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
        session_id: str | None,
        scope: Scope,
        body: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(server, session_id)
        self._http_scope = scope
        self._body = body
        self._receive_more = receive
        self._pass_on = send

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


def _session_id(cookie: "str | Morsel[str] | None") -> str | None:
    return cookie if cookie is None or isinstance(cookie, str) else cookie.value
