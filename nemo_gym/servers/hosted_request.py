"""Requests to a direct route: one class per transport.

A request opens its session and builds its `Request` object only if the route uses them.
"""

from http.cookies import Morsel
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_gym.http import Call, ClientResponse, Cookies
from nemo_gym.servers.asgi import Collector, Reply, adding_headers, cookies_of, local_scope, receive_body
from nemo_gym.servers.direct_route import DataResponse, DirectRoute, ResponseData
from nemo_gym.servers.hosted_app import HostedApp
from nemo_gym.servers.run_sessions import AgentRequest
from nemo_gym.servers.session_middleware import is_disconnected
from nemo_gym.servers.sessions import Session, SessionEndedError
from nemo_gym.session_cookies import session_id_in
from nemo_gym.undocumented.starlette_internals import headers_of, is_plain, parse_cookies

R = TypeVar("R")
"""What the transport returns: a ClientResponse in this process, a Reply to send over HTTP."""


class HostedRequest(Generic[R]):
    """A request to a route; its subclasses return the response in the form of their transport."""

    __slots__ = ("_server", "_session", "agent_request", "ended", "session_id")

    def __init__(self, server: HostedApp, cookie: "str | Morsel[str] | None", path: str) -> None:
        sessions = server.sessions
        self._server = server
        self.agent_request: AgentRequest | None = None
        self.ended: SessionEndedError | None = None
        self._session: Session | None = None
        if cookie is None:
            self.session_id = sessions.new_id()
            return
        self.session_id = sessions.identify(cookie, path)
        if self.session_id in sessions.ended_ids:
            self.ended = sessions.ended(self.session_id)
        if sessions.holds(self.session_id):  # in use until `close`, so that it is not dropped
            self._session = sessions.open(self.session_id)

    def close(self) -> None:
        if self._session is not None:
            self._server.sessions.close(self._session)
            self._session = None

    def lose(self) -> None:
        """Close the request; the caller gets no response, so it will not close a session that began here."""
        self.close()
        if self._has_begun_session():
            self._server.sessions.start_ending(self.session_id)

    def _has_begun_session(self) -> bool:
        """Whether a session is kept that the caller did not bring."""
        sessions = self._server.sessions
        if not sessions.holds(self.session_id):
            return False
        return session_id_in(self.cookies().get(sessions.cookie_name)) != self.session_id

    def session_headers(self) -> list[tuple[str, str]]:
        """The cookie of the session, and the names of those that a nested call of an agent began."""
        own = ("set-cookie", self._server.sessions.set_cookie(self.session_id, self._session))
        return [own] if self.agent_request is None else [*self.agent_request.passed_on(), own]

    def cookies(self) -> Cookies:
        """All cookies of the request."""
        raise NotImplementedError

    def build(self) -> Request:
        if self._session is None:
            self._session = self._server.sessions.open(self.session_id)
        scope = self._scope()
        scope["session"] = self._session
        return Request(scope, self._receive())

    def respond(self, reply: Reply) -> R:
        raise NotImplementedError

    def encode(self, route: DirectRoute, value: Any) -> bytes:
        """The body of the response."""
        return route.encode(value, route.status)

    async def send(self, response: Response) -> Reply:
        """Send a response object. A failure of its background task does not change the response."""
        if is_plain(response):
            headers = [*headers_of(response), *self.session_headers()]
            return response.status_code, headers, bytes(response.body)
        return await self._send_by_asgi(response)

    def _scope(self) -> Scope:
        raise NotImplementedError

    def _receive(self) -> Receive:
        raise NotImplementedError

    async def _send_by_asgi(self, response: Response) -> Reply:
        raise NotImplementedError


class LocalRequest(HostedRequest[ClientResponse]):
    """A request of a caller in this process."""

    __slots__ = ("_call", "_data")

    def __init__(self, server: HostedApp, call: Call) -> None:
        super().__init__(server, call.cookies.get(server.sessions.cookie_name), call.path)
        self._call = call
        self._data: ResponseData | None = None
        """The response of a route on plain data; its body is not written yet."""

    def encode(self, route: DirectRoute, value: Any) -> bytes:
        if route.response_data is None or type(value) is not dict:
            return super().encode(route, value)
        self._data = ResponseData(route, value, route.shape_data(value))
        return b""

    def respond(self, reply: Reply) -> ClientResponse:
        if self._data is None:
            return self._server.client_response(self._call, reply)
        return DataResponse(self._data, reply[1], self._call.method, self._server.name + self._call.path)

    def cookies(self) -> Cookies:
        return self._call.cookies

    def _scope(self) -> Scope:
        return local_scope(self._call, self._server.app, self._server.state)

    def _receive(self) -> Receive:
        return receive_body(self._call.body)

    async def _send_by_asgi(self, response: Response) -> Reply:
        collector = Collector()
        send = adding_headers(collector.send, self.session_headers)
        return await self._server.first_reply(response(self._scope(), self._receive(), send), collector)


class HttpRequest(HostedRequest[Reply]):
    """A request over HTTP. A streaming response is sent piece by piece."""

    __slots__ = ("_body", "_http_scope", "_pass_on", "_receive_more")

    def __init__(self, server: HostedApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        super().__init__(server, server.sessions.cookie_in(cookies_of(scope)), scope["path"])
        self._http_scope = scope
        self._body = body
        self._receive_more = receive
        self._pass_on = send

    async def end_session_of_lost_caller(self) -> None:
        """Call before the response is sent: a caller that has disconnected will not close its session."""
        if self._has_begun_session() and await is_disconnected(self._http_scope, self._receive_more):
            self._server.sessions.start_ending(self.session_id)

    def cookies(self) -> Cookies:
        return parse_cookies(cookies_of(self._http_scope))

    def respond(self, reply: Reply) -> Reply:
        return reply

    def _scope(self) -> Scope:
        return self._http_scope

    def _receive(self) -> Receive:
        return receive_body(self._body, self._receive_more)

    async def _send_by_asgi(self, response: Response) -> Reply:
        collector = Collector(self._pass_on)
        try:
            await response(
                self._scope(), self._receive(), adding_headers(collector.send, self.session_headers)
            )
        except Exception as error:  # the boundary of a server
            if not collector.status:
                raise
            self._server.failures.log(error)
        return 0, [], b""
