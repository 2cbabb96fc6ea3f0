"""A server as it is hosted: one object that answers both transports, in the same way.

Over HTTP it is the ASGI application that uvicorn serves; in this process the client calls it. Either way a
plain endpoint is called directly and anything else goes through the server's own FastAPI application.
"""

from collections.abc import AsyncIterator, Callable, Mapping
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
from nemo_gym.servers.failures import FailureMiddleware, add_cause, log_failure, respond_to
from nemo_gym.servers.sessions import Session, SessionStore

_JSON = ("content-type", "application/json")


class HostedServer:
    """A server's application, ready to be served or called."""

    def __init__(self, name: str, app: FastAPI) -> None:
        self.name = name
        self.app = app
        store = _session_store(app)
        self.sessions = store or SessionStore("")
        # A middleware of the environment's own must see every request.
        only_ours = store is not None and len(app.user_middleware) == 1
        self._endpoints = compile_endpoints(app) if only_ours else {}
        self._state: Mapping[str, Any] = {}
        app.add_middleware(FailureMiddleware, server_name=name, sessions=self.sessions)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start-up and shutdown of the application, where it is not uvicorn that runs them."""
        async with self.app.router.lifespan_context(self.app) as state:
            self._state = state or {}
            yield

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
                request = _Lazy(lambda: local_scope(call, self.app, self._state), session, call.body)
                return self._response(call, await self._answer(endpoint, arguments, request))
        collector = Collector()
        await self.app(local_scope(call, self.app, self._state), receive_body(call.body), collector.send)
        return self._response(call, collector.answer())

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
        try:
            arguments = endpoint.arguments(body)
        except NotDirectError:
            await self.app(scope, receive_body(body), send)
            return
        scope["app"] = self.app
        session = self.sessions.open(self.sessions.id_in(cookies_of(scope)))
        request = _Lazy(lambda: scope, session, body, stream_to=send)
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
            add_cause(response.headers, status, self.name)
            if body is not None:  # the response only carries headers for it
                return status, [_JSON, *response.headers.items(), cookie], body
            return await request.send(response, cookie, self.name)
        except Exception as error:  # the boundary of a server: every failure becomes an answer
            response = await respond_to(error, request.build(), self.name)
            return await request.send(response, cookie, self.name)
        finally:
            self.sessions.close(request.session)


class _Lazy:
    """A request whose object is only built if somebody wants it."""

    __slots__ = ("_body", "_make_scope", "_stream_to", "session")

    def __init__(
        self, make_scope: Callable[[], Scope], session: Session, body: bytes, stream_to: Send | None = None
    ) -> None:
        self.session = session
        self._make_scope = make_scope
        self._body = body
        self._stream_to = stream_to
        """Where a response object sends itself; None: what it sends is collected."""

    def build(self) -> Request:
        scope = self._make_scope()
        scope["session"] = self.session
        return Request(scope, receive_body(self._body))

    async def send(self, response: Response, cookie: tuple[str, str], server_name: str) -> Answer:
        """A response object as what it sends; its background task runs too, and cannot spoil the answer."""
        collector = Collector(self._stream_to)
        receive = receive_body(self._body)
        try:
            await response(self._make_scope(), receive, adding_header(collector.send, *cookie))
        except Exception as error:  # the boundary of a server
            if not collector.status:
                raise
            log_failure(error, server_name)
        return collector.answer()


def _session_id(cookie: "str | Morsel[str] | None") -> str | None:
    return cookie if cookie is None or isinstance(cookie, str) else cookie.value


def _session_store(app: FastAPI) -> SessionStore | None:
    for entry in app.user_middleware:
        store = entry.kwargs.get("store")
        if isinstance(store, SessionStore):
            return store
    return None
