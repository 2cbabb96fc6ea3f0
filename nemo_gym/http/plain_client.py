"""Plain HTTP: a minimal HTTP/1.1 client. It writes a request in one piece and parses a response once.

Rollouts make thousands of calls per second; a call with this client takes a third of the CPU time of aiohttp.
`can_send` says whether it can send a call. aiohttp sends the others (TLS, credentials, options of aiohttp).

Invariant: a connection carries one request at a time and returns to the pool only after a complete response.
Every error while a response is read ends the call that waits for it.
"""

import asyncio
import re
import time
from collections import defaultdict
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import aiohttp
import httptools

from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse
from nemo_gym.http.response_body import ResponseBody
from nemo_gym.http.size_limits import SizeLimits, TooLargeError, header_bytes, too_large
from nemo_gym.undocumented.aiohttp_internals import connector_error

CONNECT_S = 30.0
KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept. Servers keep theirs longer (uvicorn: 5 s), so that a server does not
close a connection while a request is being sent on it."""

_PLAIN_ORIGIN = re.compile(r"http://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_LARGE = 65_536
"""From this many bytes on, the body is not copied to put it after the head."""
_FORBIDDEN = re.compile(r"[\r\n\0]")
SWITCHED_PROTOCOLS = "the server switched to another protocol (101) although that was not requested"
_FRAMING = frozenset(("host", "content-length", "transfer-encoding", "connection"))
"""Headers that this client writes itself."""


class Place(NamedTuple):
    """Host and port of an origin."""

    host: str
    port: int
    authority: str
    """The value of the Host header."""


@lru_cache(maxsize=1024)
def place_of(origin: str) -> Place | None:
    """The place of an origin; None if only aiohttp can reach it."""
    found = _PLAIN_ORIGIN.fullmatch(origin)
    if found is None:
        return None
    host, port = found[1], int(found[2] or 80)
    return Place(host.strip("[]"), port, host if port == 80 else f"{host}:{port}")


def can_send(call: Call) -> bool:
    """Whether the plain client can send the call; if not, aiohttp can."""
    return (
        place_of(call.origin) is not None
        and not call.aiohttp_options
        and call.method != "HEAD"  # its response has no body, although its headers may give a length
        and _FRAMING.isdisjoint([name.lower() for name, _ in call.headers])
    )


class _Received(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, pool: "PlainTransport", place: Place) -> None:
        self._pool = pool
        self._place = place
        self._parser: Any = httptools.HttpResponseParser(self)
        self.transport: Any = None
        self._waiting: asyncio.Future[_Received] | None = None
        self.idle_since = 0.0
        self._is_in_message = False
        self._body_limit = 0
        self._unframed = 0
        """Bytes received since the request was sent, or since the last byte of a body: those of the head, of
        an interim response, of the framing of a chunk, or of trailers."""
        self._forget_response()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._pool.open_ones.add(self)

    @property
    def is_usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def expect_response(self, body_limit: int) -> "asyncio.Future[_Received]":
        """A future for the response to the next request."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._body_limit = body_limit
        self._unframed = 0
        return self._waiting

    def abandon(self, response: "asyncio.Future[_Received]") -> None:
        """Stop waiting for a response. Closes the connection, so that no later caller gets it."""
        if self._waiting is response:
            self._waiting = None
            self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # data without a request
            self.close()
            return
        self._unframed += len(data)
        try:
            self._parser.feed_data(data)
            if self._unframed > self._pool.limits.header_bytes and self._waiting is not None:
                raise TooLargeError("header_bytes")
        except Exception as error:  # whatever it is, the response cannot be completed
            self._fail(_client_error(error))
        if self._waiting is None and self._is_in_message:  # there is data after the response
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.forget(self, self._place)
        try:
            if self._has_head and self._ends_with_connection and error is None:
                self._finish()
            elif self._has_head:
                self._fail(aiohttp.ClientPayloadError("the response was cut off"))
            else:
                self._fail(aiohttp.ServerDisconnectedError())
        except Exception as failure:  # the body cannot be decompressed
            self._fail(_client_error(failure))

    def on_message_begin(self) -> None:
        self._is_in_message = True

    def _forget_response(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._body: ResponseBody | None = None
        self._coding = ""
        self._declared_bytes = 0
        self._has_head = False
        self._ends_with_connection = True
        """True unless the head gives the length of the response."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))
        name = name.lower()
        if name == b"content-length":
            self._ends_with_connection = False
            self._declared_bytes = int(value)
        elif name == b"transfer-encoding":
            self._ends_with_connection = False
        elif name == b"content-encoding":
            self._coding = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True
        most = self._pool.limits.header_bytes
        if self._unframed > most and header_bytes(self._headers) > most:
            raise TooLargeError("header_bytes")
        if self._declared_bytes > self._body_limit:
            raise TooLargeError("response_bytes")
        self._body = ResponseBody(self._coding, self._body_limit)

    def on_body(self, data: bytes) -> None:
        assert self._body is not None
        self._unframed = 0
        self._body.feed(data)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        if self._parser.get_status_code() < 200:  # `100 Continue` and the like: the response follows
            self._forget_response()
            return
        keep = self._parser.should_keep_alive() and self._waiting is not None
        self._finish()
        if keep and self.is_usable:
            self._pool.put_back(self, self._place)
        else:
            self.close()

    def _finish(self) -> None:
        body = self._body.whole() if self._body is not None else b""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(_Received(self._parser.get_status_code(), self._headers, body))
        self._forget_response()  # also because an idle connection should hold no memory

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self._forget_response()
        self.close()


def _client_error(error: Exception) -> Exception:
    """What a caller gets for an error while a response is read."""
    if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, Exception):
        return error.__context__  # raised in a method of the connection
    if isinstance(error, httptools.HttpParserUpgrade):
        return aiohttp.ClientPayloadError(SWITCHED_PROTOCOLS)
    if isinstance(error, httptools.HttpParserError):
        return aiohttp.ClientPayloadError(f"the response is not HTTP: {error}")
    return error


class PlainTransport:
    """The connections of one event loop."""

    def __init__(self, limits: SizeLimits = SizeLimits()) -> None:  # noqa: B008  # immutable
        self.limits = limits
        self.open_ones: set[_Connection] = set()
        self._idle: defaultdict[Place, list[_Connection]] = defaultdict(list)

    async def send(self, call: Call) -> ClientResponse:
        """Send a call that `can_send` accepts. Raises the same exceptions as aiohttp."""
        place = place_of(call.origin)
        assert place is not None
        head = _head(call.method, place, call.target, call.wire_headers())
        head += b"Content-Length: %d\r\n\r\n" % len(call.body)
        connection = self._idle_one(place) or await self._connect(place)
        response = connection.expect_response(self.limits.response_to(call))
        if len(call.body) < _LARGE:
            connection.transport.write(head + call.body)
        else:
            connection.transport.writelines((head, call.body))
        try:
            status, headers, body = await response
        except asyncio.CancelledError:
            connection.abandon(response)
            raise
        except TooLargeError as error:
            raise too_large(call, self.limits, error) from error
        return ClientResponse(status, headers, body, method=call.method, url=call.url)

    def _idle_one(self, place: Place) -> _Connection | None:
        idle = self._idle[place]
        oldest = time.monotonic() - KEEP_ALIVE_S
        while idle:
            connection = idle.pop()
            if connection.is_usable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, place: Place) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, place), place.host, place.port
                )
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {place.authority}") from error
        except OSError as error:
            raise connector_error(place.host, place.port, error) from error
        return connection

    def put_back(self, connection: _Connection, place: Place) -> None:
        connection.idle_since = now = time.monotonic()
        idle = self._idle[place]
        while idle and idle[0].idle_since < now - KEEP_ALIVE_S:  # the longest unused are first
            idle.pop(0).close()
        idle.append(connection)

    def forget(self, connection: _Connection, place: Place) -> None:
        self.open_ones.discard(connection)
        with suppress(ValueError):
            self._idle[place].remove(connection)

    def close(self) -> None:
        for connection in list(self.open_ones):
            connection.close()


@lru_cache(maxsize=256)
def _head(method: str, place: Place, target: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The head of a request up to `Content-Length`: the same for every call to an endpoint."""
    for name, value in headers:
        if _FORBIDDEN.search(name) or _FORBIDDEN.search(value):
            raise ValueError(f"header {name!r} has a line break or a null character")
    fields = [("Host", place.authority), ("Accept", "*/*"), *headers]
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")
