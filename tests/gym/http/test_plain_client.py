"""The plain HTTP client with responses in every form that HTTP allows, and with invalid ones."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from io import BytesIO

import aiohttp
import pytest

from nemo_gym.http import Call, ClientResponse, parse_call, request
from nemo_gym.http.plain_client import PlainTransport, can_send, place_of
from tests.gym.http.raw_server import Handler, RawServer, raw_response, serving
from tests.support.waiting import until

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{ }\r\n2\r\n\n\n\r\n0\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + raw_response(201, b"made")


def call_to(url: str, body: bytes = b"{}") -> Call:
    return parse_call("POST", url, data=body, headers={"Content-Type": "application/json"})


async def post(pool: PlainTransport, server: RawServer, body: bytes = b"{}") -> ClientResponse:
    async with asyncio.timeout(10):
        return await pool.send(call_to(f"{server.url}/v1/responses", body))


def played(
    script: list[bytes | None], act: Callable[[PlainTransport, RawServer], Awaitable[None]]
) -> RawServer:
    async def run() -> RawServer:
        pool = PlainTransport()
        async with serving(*script) as server:
            try:
                await act(pool, server)
            finally:
                await closed(pool)
            return server

    return asyncio.run(run())


async def closed(pool: PlainTransport) -> None:
    """Close the pool and wait until its connections are closed."""
    pool.close()
    await until(lambda: not pool.open_ones)


@asynccontextmanager
async def serving_once(respond: Handler) -> AsyncIterator[str]:
    """Serve one request per connection, which stays open until the client closes it; yields the URL."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(ConnectionError):
            await respond(reader, writer)
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, serving))


@pytest.mark.parametrize(
    ("reply", "status", "body"),
    [
        (raw_response(200, b"{}"), 200, b"{}"),
        (CHUNKED, 200, b"{ }\n\n"),
        (TO_THE_END, 200, b"all of it"),
        (CONTINUED, 201, b"made"),
        (raw_response(500, b"no"), 500, b"no"),
        (raw_response(200, gzip.compress(b"small"), "Content-Encoding: gzip"), 200, b"small"),
        (raw_response(200, zlib.compress(b"small"), "content-encoding: Deflate"), 200, b"small"),
        (raw_response(200, b"", "Content-Encoding: gzip"), 200, b""),
    ],
    ids=["length", "chunks", "until closed", "100 first", "error", "gzip", "deflate", "empty gzip"],
)
def test_every_form_of_response_is_recognized(reply: bytes, status: int, body: bytes) -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        got = await post(pool, server)
        assert (got.status, got.body) == (status, body)

    played([reply], act)


def test_headers_are_returned_as_the_server_wrote_them() -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        got = await post(pool, server)
        assert list(got.headers.items())[1:] == [("X-One", "1"), ("Set-Cookie", "a=b"), ("Set-Cookie", "c=d")]

    played([raw_response(200, b"{}", "X-One: 1", "Set-Cookie: a=b", "Set-Cookie: c=d")], act)


def test_a_request_is_what_the_server_expects() -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        await post(pool, server, b'{"a":1}')

    head, _, body = played([raw_response(200)], act).requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/responses HTTP/1.1" and lines[1].startswith(b"Host: 127.0.0.1:")
    assert b"Content-Type: application/json" in lines and b"Content-Length: 7" in lines
    assert body == b'{"a":1}'


@pytest.mark.parametrize(
    "broken",
    [None, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", b"SMTP ready\r\n\r\n", b"HTTP/1.1 200"],
    ids=["closed", "cut", "not HTTP", "half a head"],
)
def test_broken_response_is_an_error_and_closes_its_connection(broken: bytes | None) -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        with pytest.raises((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
            await post(pool, server)
        assert (await post(pool, server)).body == b"fine"
        assert len(pool.open_ones) == 1

    played([broken, raw_response(200, b"fine")], act)


def test_connections_are_used_again_and_never_shared() -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        for _ in range(3):
            await asyncio.gather(*(post(pool, server, b"x" * size) for size in (1, 200_000, 3)))
        assert len(pool.open_ones) == 3

    assert len(played([raw_response(200)], act).requests) == 9


def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        for _ in range(2):
            assert (await post(pool, server)).status == 200
            assert not [one for one in pool.open_ones if one.is_usable]

    played([raw_response(200, b"{}", "Connection: close")], act)


def test_an_idle_connection_that_is_too_old_is_replaced() -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        await post(pool, server)
        (old,) = pool.open_ones
        old.idle_since -= 60
        await post(pool, server)
        await until(lambda: old not in pool.open_ones)
        assert len(pool.open_ones) == 1

    played([raw_response(200)], act)


def test_response_of_a_cancelled_call_is_discarded() -> None:
    async def run() -> None:
        arrived, release = asyncio.Event(), asyncio.Event()

        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/late" in head:
                arrived.set()
                await release.wait()
            writer.write(raw_response(200, b"late" if b"/late" in head else b"mine"))

        pool = PlainTransport()
        async with asyncio.timeout(30), serving_once(respond) as url:
            waiting = asyncio.create_task(pool.send(parse_call("GET", f"{url}/late")))
            await arrived.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            release.set()
            assert (await pool.send(parse_call("GET", f"{url}/mine"))).body == b"mine"
            await closed(pool)

    asyncio.run(run())


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\n", raw_response(200, b"stray"), b"\0"])
def test_data_after_a_response_is_discarded(more: bytes) -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        assert (await post(pool, server)).body == b"first"
        assert (await post(pool, server)).body == b"mine"

    played([raw_response(200, b"first") + more, raw_response(200, b"mine")], act)


def test_data_on_an_idle_connection_is_not_a_response() -> None:
    async def run() -> None:
        is_idle = asyncio.Event()

        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw_response(200, b"mine"))
            await is_idle.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\n")

        pool = PlainTransport()
        async with asyncio.timeout(30), serving_once(respond) as url:
            call = parse_call("GET", f"{url}/x")
            assert (await pool.send(call)).body == b"mine"
            (idle,) = pool.open_ones
            is_idle.set()
            await until(lambda: idle not in pool.open_ones)
            assert (await pool.send(call)).body == b"mine"
            await closed(pool)

    asyncio.run(run())


def test_idle_connections_hold_no_response_and_old_ones_are_closed() -> None:
    async def act(pool: PlainTransport, server: RawServer) -> None:
        await asyncio.gather(*(post(pool, server) for _ in range(4)))
        for connection in pool.open_ones:
            assert connection._body is None and not connection._headers
            connection.idle_since -= 60
        await asyncio.gather(post(pool, server), post(pool, server))
        await until(lambda: len(pool.open_ones) == 2)

    played([raw_response(200)], act)


@pytest.mark.parametrize("headers", [{"Host": "other"}, {"content-length": "2"}, {"CONNECTION": "close"}])
def test_framing_headers_of_the_caller_are_sent_once(headers: dict[str, str]) -> None:
    async def run() -> bytes:
        async with serving(raw_response(200)) as server:
            assert (await request("POST", server.url, json={}, headers=headers)).ok
            return server.requests[0].lower()

    name = next(iter(headers)).lower().encode()
    assert asyncio.run(run()).count(b"\r\n" + name + b":") == 1


def test_a_head_request_has_no_body_to_wait_for() -> None:
    async def run() -> int:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        async with serving(head) as server, asyncio.timeout(10):
            return (await request("HEAD", server.url)).status

    assert asyncio.run(run()) == 200


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
def test_a_header_cannot_smuggle_another(value: str) -> None:
    call = parse_call("GET", "http://127.0.0.1:1/x", headers={"X-Mine": value})
    with pytest.raises(ValueError, match="line break"):
        asyncio.run(PlainTransport().send(call))


@pytest.mark.parametrize(
    "call",
    [
        parse_call("POST", "https://127.0.0.1/x", json={}),
        parse_call("POST", "http://user:password@127.0.0.1/x", json={}),
        parse_call("HEAD", "http://127.0.0.1/x"),
        parse_call("POST", "http://127.0.0.1/x", json={}, headers={"HOST": "other"}),
        parse_call("POST", "http://127.0.0.1/x", data={"file": BytesIO(b"1")}),
        parse_call("POST", "http://127.0.0.1/x", json={})._replace(aiohttp_options={"auth": None}),
    ],
    ids=["TLS", "credentials", "HEAD", "framing header", "file", "option of aiohttp"],
)
def test_requests_unsupported_by_the_plain_client_use_aiohttp(call: Call) -> None:
    assert not can_send(call)


@pytest.mark.parametrize(
    ("origin", "host", "port", "authority"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "127.0.0.1:8000"),
        ("http://node-7.cluster", "node-7.cluster", 80, "node-7.cluster"),
        ("http://[::1]:81", "::1", 81, "[::1]:81"),
    ],
)
def test_plain_origin_gives_host_and_port(origin: str, host: str, port: int, authority: str) -> None:
    assert place_of(origin) == (host, port, authority)
