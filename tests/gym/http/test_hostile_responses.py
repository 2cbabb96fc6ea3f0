"""Responses that are too large, endless, invalid or unusual have the same outcome from both clients."""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

import aiohttp
import pytest

from nemo_gym.failures import Boundary, FailureKind, kind_of_exception
from nemo_gym.http import ClientResponse, ResponseTooLargeError, request
from nemo_gym.http.transport_choice import client_settings
from tests.gym.http.raw_server import raw_response, sending

LIMITS = {"max_response_mb": 1, "max_response_header_kb": 8}
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MB = 2**20
BOMB = gzip.compress(bytes(300 * MB), 1)
BROKEN = aiohttp.ClientPayloadError
TOO_LARGE = ResponseTooLargeError


@dataclass(frozen=True)
class Case:
    pieces: Callable[[], Iterator[bytes]]
    """What the server sends before it closes the connection."""
    status: int = 0
    body: bytes = b""
    error: type[Exception] | None = None
    message: str | None = None
    aiohttp_error: type[Exception] | None = None
    """If aiohttp refuses what the plain client ignores: data after the end of a response."""


def whole(data: bytes, status: int = 0, body: bytes = b"", **expected: object) -> Case:
    return Case(lambda: iter([data]), status, body, **expected)  # type: ignore[arg-type]


def endless(start: bytes, piece: bytes, **expected: object) -> Case:
    return Case(lambda: chain([start], repeat(piece)), **expected)  # type: ignore[arg-type]


BODY_LIMIT = "the body of the response to GET .* exceeds 1 MB.*max_response_mb"
HEADER_LIMIT = "the headers of the response to GET .* exceed 8 KB.*max_response_header_kb"

CASES = {
    "gzip bomb": whole(
        raw_response(200, BOMB, "Content-Encoding: gzip"), error=TOO_LARGE, message=BODY_LIMIT
    ),
    "deflate bomb": whole(
        raw_response(200, zlib.compress(bytes(64 * MB)), "Content-Encoding: deflate"),
        error=TOO_LARGE,
        message=BODY_LIMIT,
    ),
    "endless body": endless(OK + b"\r\n", b"x" * 65536, error=TOO_LARGE, message=BODY_LIMIT),
    "endless chunks": endless(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n", error=TOO_LARGE),
    "declared too large": whole(OK + b"Content-Length: 99999999999\r\n\r\n{", error=TOO_LARGE),
    "as large as allowed": whole(raw_response(200, bytes(MB)), 200, bytes(MB)),
    "64 MB header": whole(
        OK + b"X-Long: " + b"x" * 64 * MB + b"\r\n\r\n", error=TOO_LARGE, message=HEADER_LIMIT
    ),
    "endless header": endless(OK + b"X-Long: ", b"x" * 4096, error=TOO_LARGE, message=HEADER_LIMIT),
    "long headers with a body": whole(
        raw_response(200, b"{}", *(f"X-{n}: {'x' * 1000}" for n in range(9))), error=TOO_LARGE
    ),
    "headers within the limit": whole(raw_response(200, b"{}", f"X-Long: {'x' * 7000}"), 200, b"{}"),
    "redirect": whole(raw_response(302, b"", "Location: http://127.0.0.1:1/elsewhere"), 302),
    "101": whole(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x00\x01",
        error=BROKEN,
        message="switched to another protocol",
    ),
    "offer of an upgrade": whole(
        raw_response(200, b"{}", "Connection: Upgrade", "Upgrade: h2,h2c"), 200, b"{}"
    ),
    "102 and 103 first": whole(
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + raw_response(200),
        200,
        b"{}",
    ),
    "HTTP/1.0 without a length": whole(b"HTTP/1.0 200 OK\r\n\r\nall of it", 200, b"all of it"),
    "HTTP/1.0 with keep-alive": whole(
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}", 200, b"{}"
    ),
    "204 with a body": whole(
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}", 204, aiohttp_error=BROKEN
    ),
    "longer than its length": whole(
        OK + b"Content-Length: 2\r\n\r\n{}{}{}", 200, b"{}", aiohttp_error=BROKEN
    ),
    "shorter than its length": whole(OK + b"Content-Length: 9\r\n\r\n{}", error=BROKEN),
    "length that is not a number": whole(OK + b"Content-Length: two\r\n\r\n{}", error=BROKEN),
    "negative length": whole(OK + b"Content-Length: -2\r\n\r\n{}", error=BROKEN),
    "two lengths": whole(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", error=BROKEN),
    "bad chunk size": whole(CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", error=BROKEN),
    "chunk longer than its size": whole(CHUNKED + b"1\r\n{}\r\n0\r\n\r\n", error=BROKEN),
    "no last chunk": whole(CHUNKED + b"2\r\n{}\r\n", error=BROKEN),
    "not gzip": whole(raw_response(200, b"plain", "Content-Encoding: gzip"), error=BROKEN),
    "half of gzip": whole(
        raw_response(200, gzip.compress(b"text " * 99)[:-9], "Content-Encoding: gzip"), error=BROKEN
    ),
    "two gzip members": whole(
        raw_response(200, gzip.compress(b"one ") + gzip.compress(b"two"), "Content-Encoding: gzip"),
        200,
        b"one two",
    ),
    "raw deflate": whole(
        raw_response(200, zlib.compress(b"small", wbits=-15), "Content-Encoding: deflate"), 200, b"small"
    ),
    "unknown coding": whole(
        raw_response(200, b"??", "Content-Encoding: br"), error=BROKEN, message="its coding is 'br'"
    ),
    "binary": whole(b"\x00\xff\x16\x03\x01" * 40 + b"\r\n\r\n", error=BROKEN, message="not HTTP"),
    "status that is not a number": whole(b"HTTP/1.1 OK 200\r\n\r\n", error=BROKEN, message="not HTTP"),
    "header that is not UTF-8": whole(raw_response(200, b"{}", "X-Odd: ü").replace(b"\xc3", b""), 200, b"{}"),
}


def fetch(case: Case, **settings: object) -> ClientResponse:
    async def run() -> ClientResponse:
        async with sending(case.pieces) as url, asyncio.timeout(60):
            return await request("GET", url)

    with client_settings({**LIMITS, **settings}):
        return asyncio.run(run())


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "aiohttp"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outcome_is_the_same_from_both_clients(case: Case, is_plain: bool) -> None:
    error = case.error or (None if is_plain else case.aiohttp_error)
    if error is None:
        got = fetch(case, plain_http_client=is_plain)
        assert (got.status, got.body) == (case.status, case.body)
        return
    with pytest.raises(error, match=case.message):
        fetch(case, plain_http_client=is_plain)


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "aiohttp"])
@pytest.mark.parametrize(
    "case",
    [endless(OK + b"X-Long: ", b"x"), endless(CHUNKED, b"1\r\nx\r\n"), endless(OK + b"\r\n", b"x")],
    ids=["header", "chunks", "body"],
)
def test_response_that_drips_ends_with_the_timeout_of_the_call(case: Case, is_plain: bool) -> None:
    async def run() -> None:
        async with sending(case.pieces, pace_s=0.005) as url, asyncio.timeout(30):
            with pytest.raises(TimeoutError):
                await request("GET", url, timeout_s=0.2)

    with client_settings({"plain_http_client": is_plain}):
        asyncio.run(run())


def test_response_that_is_too_large_would_be_so_again() -> None:
    for boundary in Boundary:
        assert kind_of_exception(ResponseTooLargeError("x"), boundary) == FailureKind.DATA
