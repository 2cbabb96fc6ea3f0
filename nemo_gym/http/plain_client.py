"""A lean HTTP/1.1 client for plain `http://` addresses: a request is one write, an answer one parse.

Rollouts call endpoints and servers thousands of times a second; this costs a third of what aiohttp does.
Whatever is out of the ordinary (TLS, credentials, queries, a pool that somebody sized) is aiohttp's.

Invariant: a connection carries one request at a time and goes back to the pool only when its answer was
whole.
"""

import asyncio
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import aiohttp
import httptools

from nemo_gym.undocumented.aiohttp_internals import connector_error

CONNECT_S = 30.0
KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept: shorter than servers do (uvicorn: 5 s), so that it is not the server
who closes it at the moment a request goes out on it."""

_PLAIN_URL = re.compile(
    r"http://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?"
)
_DOT_SEGMENT = "/."
_LARGE = 65_536
"""Bytes from which a body is not copied to its head."""
_FORBIDDEN = re.compile(r"[\r\n\0]")


class Target(NamedTuple):
    host: str
    port: int
    path: str
    authority: str
    """What the Host header says."""


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


@lru_cache(maxsize=1024)
def target_of(url: str) -> Target | None:
    """Where a plain address leads; None where it is not plain."""
    found = _PLAIN_URL.fullmatch(url)
    if found is None or _DOT_SEGMENT in url:
        return None
    host, port = found[1], int(found[2] or 80)
    authority = host if port == 80 else f"{host}:{port}"
    return Target(host.strip("[]"), port, found[3] or "/", authority)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, pool: "PlainPool", place: tuple[str, int]) -> None:
        self._pool = pool
        self._place = place
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._waiting: asyncio.Future[Answer] | None = None
        self.idle_since = 0.0
        self._is_in_message = False
        self._forget_answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._pool.open_ones.add(self)

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes) -> Answer:
        """Send a request; gives the answer when it is whole."""
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        if len(body) < _LARGE:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._waiting is waiting:  # its answer may still come: nobody else must get it
                self._waiting = None
                self.close()
            raise

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # nobody asked: whatever it is, it is not an answer
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(aiohttp.ClientPayloadError(f"the answer is not HTTP: {error}"))
        if self._waiting is None and self._is_in_message:  # more than the answer came
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.forget(self, self._place)
        if self._has_head and self._ends_with_connection and error is None:
            self._finish()
        elif self._has_head:
            self._fail(aiohttp.ClientPayloadError("the answer broke off"))
        else:
            self._fail(aiohttp.ServerDisconnectedError())

    def on_message_begin(self) -> None:
        self._is_in_message = True
        self._forget_answer()

    def _forget_answer(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._parts: list[bytes] = []
        self._coding = b""
        self._has_head = False
        self._ends_with_connection = True
        """Unless the head says where the answer ends."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        elif name == b"content-encoding":
            self._coding = value.strip().lower()

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        if self._parser.get_status_code() < 200:  # `100 Continue` and the like: the answer is yet to come
            self._has_head = False
            return
        keep = self._parser.should_keep_alive() and self._waiting is not None
        self._finish()
        if keep and self.is_usable:
            self._pool.put_back(self, self._place)
        else:
            self.close()

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, None
        self._has_head = False
        if waiting is None or waiting.done():
            return
        try:
            body = _decoded(self._coding, b"".join(self._parts))
        except zlib.error as error:
            waiting.set_exception(aiohttp.ClientPayloadError(f"the answer cannot be decoded: {error}"))
        else:
            waiting.set_result(Answer(self._parser.get_status_code(), self._headers, body))
        self._forget_answer()  # an idle connection keeps nothing

    def _fail(self, error: aiohttp.ClientError) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self.close()


class PlainPool:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self.open_ones: set[_Connection] = set()
        self._idle: defaultdict[tuple[str, int], list[_Connection]] = defaultdict(list)

    async def request(
        self, method: str, target: Target, headers: Iterable[tuple[str, str]], body: bytes
    ) -> Answer:
        """One request and its answer. Raises what aiohttp raises."""
        head = _head(method, target, tuple(headers)) + b"Content-Length: %d\r\n\r\n" % len(body)
        connection = self._idle_one((target.host, target.port)) or await self._connect(target)
        return await connection.exchange(head, body)

    def _idle_one(self, place: tuple[str, int]) -> _Connection | None:
        idle = self._idle[place]
        oldest = time.monotonic() - KEEP_ALIVE_S
        while idle:
            connection = idle.pop()
            if connection.is_usable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, target: Target) -> _Connection:
        place = (target.host, target.port)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(lambda: _Connection(self, place), *place)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {target.authority}") from error
        except OSError as error:
            raise connector_error(*place, error) from error
        return connection

    def put_back(self, connection: _Connection, place: tuple[str, int]) -> None:
        connection.idle_since = now = time.monotonic()
        idle = self._idle[place]
        while idle and idle[0].idle_since < now - KEEP_ALIVE_S:  # the longest unused stand first
            idle.pop(0).close()
        idle.append(connection)

    def forget(self, connection: _Connection, place: tuple[str, int]) -> None:
        self.open_ones.discard(connection)
        with suppress(ValueError):
            self._idle[place].remove(connection)

    def close(self) -> None:
        for connection in list(self.open_ones):
            connection.close()


@lru_cache(maxsize=256)
def _head(method: str, target: Target, headers: tuple[tuple[str, str], ...]) -> bytes:
    """A request up to its length: the same for every call to an endpoint."""
    for name, value in headers:
        if _FORBIDDEN.search(name) or _FORBIDDEN.search(value):
            raise ValueError(f"header {name!r} holds a line break")
    fields = [("Host", target.authority), ("Accept", "*/*"), *headers]
    lines = [f"{method} {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


def _decoded(coding: bytes, body: bytes) -> bytes:
    """We ask for no compression; some compress all the same."""
    if not body:
        return body
    if coding == b"gzip":
        return zlib.decompress(body, 16 + zlib.MAX_WBITS)
    return zlib.decompress(body) if coding == b"deflate" else body
