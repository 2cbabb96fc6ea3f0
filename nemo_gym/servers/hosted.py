"""A hosted server: one object for both sides of a transport.

Over HTTP it is the ASGI application that uvicorn serves; in this process it is the transport of the client.
Either way, simple routes are called directly and other requests go through the FastAPI application of the
server, so the response is the same.
"""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_gym.codec import encode_json
from nemo_gym.errors import ComponentError
from nemo_gym.event_loop import end_forked_process
from nemo_gym.http import Call, ClientResponse
from nemo_gym.http.size_limits import SizeLimits, request_too_large
from nemo_gym.servers.asgi import (
    Collector,
    Reply,
    is_json,
    local_scope,
    read_body,
    receive_body,
    send_reply,
)
from nemo_gym.servers.direct_route import (
    DirectRoute,
    NotDirectError,
    compile_routes,
    is_direct_supported,
)
from nemo_gym.servers.failure_responses import FAILED, FailureMiddleware, Failures
from nemo_gym.servers.hosted_app import HostedApp
from nemo_gym.servers.hosted_request import HostedRequest, HttpRequest, LocalRequest, R
from nemo_gym.servers.session_middleware import close_session, is_close_session, sessions_of
from nemo_gym.servers.sessions import SessionStore
from nemo_gym.session_cookies import CLOSE_SESSION_PATH, RUN_PATH
from nemo_gym.undocumented.fastapi_internals import build_schemas
from nemo_gym.undocumented.starlette_internals import middleware_count

_JSON = ("content-type", "application/json")


class HostedServer(HostedApp):
    """A server's application, ready to be served or called."""

    def __init__(
        self,
        name: str,
        app: FastAPI,
        secrets: frozenset[str] = frozenset(),
        limits: SizeLimits = SizeLimits(),  # noqa: B008  # immutable
        folder: Path | None = None,
    ) -> None:
        """`folder`: that of the component, for messages about files that are missing."""
        _check_reserved(name, app)
        self.limits = limits
        sessions = sessions_of(app)
        store = sessions.store if sessions is not None else SessionStore("")
        super().__init__(name, app, store, Failures(name, secrets, folder))
        self._owner = os.getpid()
        self.sessions.server_name = name
        self.sessions.log_error = self.failures.log
        # If the environment adds middleware, every request must go through it.
        self._is_direct = sessions is not None and middleware_count(app) == 1
        self._routes = compile_routes(app) if self._is_direct else {}
        if not is_direct_supported():
            build_schemas(app)
        self._runs = sessions.runs if sessions is not None else None
        self._run_route = self._routes.get(("POST", RUN_PATH))
        app.add_middleware(FailureMiddleware, failures=self.failures)

    def send(self, call: Call) -> Coroutine[Any, Any, ClientResponse]:
        """Respond to a caller in this process. Implements `http.transport.Transport`."""
        if call.aiohttp_options:
            raise TypeError(
                f"{call.method} {self.name}{call.path}: a server in this process cannot receive forms with "
                "files, FormData objects or streams; pass json=…, or data=… as text, bytes or a mapping"
            )
        if len(call.body) > self.limits.request_bytes and len(call.body) > self.limits.request_to(call.path):
            return self._refuse_too_large(call)
        route = None if call.query else self._routes.get((call.method, call.path))
        if route is not None and (route.body_field is None or call.is_json):
            try:
                arguments = route.arguments(call.body)
            except NotDirectError:
                pass
            else:
                return self._respond(route, arguments, LocalRequest(self, call))
        if self._is_direct and is_close_session(call.method, call.path):
            return self._close_session(call)
        return self._send_through_app(call)

    async def _refuse_too_large(self, call: Call) -> ClientResponse:
        """As over HTTP, where `Gate` refuses it."""
        body = encode_json({"detail": request_too_large(call.path, self.limits)})
        return self.client_response(call, (413, [_JSON], body))

    async def _close_session(self, call: Call) -> ClientResponse:
        await close_session(self.sessions, call.cookies.get(self.sessions.cookie_name))
        return self.client_response(call, (204, [], b""))

    async def _send_through_app(self, call: Call) -> ClientResponse:
        collector = Collector()
        scope = local_scope(call, self.app, self.state)
        responding = self.app(scope, receive_body(call.body), collector.send)
        return self.client_response(call, await self.first_reply(responding, collector))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a caller over HTTP."""
        route = None
        if scope["type"] == "http" and not scope["query_string"]:
            route = self._routes.get((scope["method"], scope["path"]))
        if route is None or (route.body_field is not None and not is_json(scope)):
            await self.app(scope, receive, send)
            return
        body = await read_body(receive)
        if body is None:
            return
        try:
            arguments = route.arguments(body)
        except NotDirectError:
            await self.app(scope, receive_body(body, receive), send)
            return
        scope["app"] = self.app
        request = HttpRequest(self, scope, body, receive, send)
        reply = await self._respond(route, arguments, request)
        await request.end_session_of_lost_caller()
        await send_reply(send, reply)

    async def _respond(self, route: DirectRoute, arguments: dict[str, Any], request: HostedRequest[R]) -> R:
        """Call the route; its result or its exception becomes a response."""
        if self._runs is not None:
            request.agent_request = self._runs.begin(request.cookies(), closes=route is self._run_route)
        reply: Reply
        try:
            if request.ended is not None:
                raise request.ended
            if route.request_parameter is not None:
                arguments[route.request_parameter] = request.build()
            carrier = route.carrier(arguments) if route.response_parameter is not None else None
            value = await route.invoke(arguments)
            end_forked_process(self._owner)
            if isinstance(value, Response):
                self.failures.add_cause(value.headers, value.status_code)
                reply = await request.send(value)
            elif carrier is None:
                reply = route.status, [_JSON, *request.session_headers()], request.encode(route, value)
            else:
                status = carrier.status_code or route.status
                body = route.encode(value, status)
                self.failures.add_cause(carrier.headers, status)
                reply = status, [_JSON, *carrier.headers.items(), *request.session_headers()], body
        except asyncio.CancelledError:
            request.lose()
            raise
        except FAILED as error:  # the boundary of a server: every failure becomes a response
            end_forked_process(self._owner)
            reply = await request.send(await self.failures.respond_to(error, request.build()))
        finally:
            request.close()
            if request.agent_request is not None:
                request.agent_request.leave(self.sessions, request.session_id)
                if request.agent_request.kept:
                    await request.agent_request.close_sessions()
        return request.respond(reply)


def _check_reserved(name: str, app: FastAPI) -> None:
    if any(getattr(route, "path", None) == CLOSE_SESSION_PATH for route in app.routes):
        raise ComponentError(
            f"{name}: the route {CLOSE_SESSION_PATH} is reserved. To free the resources of a session, define "
            "`async def close_session(self, session_id: str)` on the server; if it is a tool, rename it"
        )
