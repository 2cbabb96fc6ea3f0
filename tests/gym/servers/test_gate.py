"""Which requests reach the application of a server."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import Body, Request

from nemo_gym.http.access_token import ACCESS_HEADER
from nemo_gym.http.size_limits import SizeLimits
from nemo_gym.servers.activity_report import Activities
from nemo_gym.servers.gate import Access, Gate
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.serve import listen
from nemo_gym.undocumented.uvicorn_internals import serving
from tests.gym.servers.serving import new_app

LIMITS = SizeLimits(request_bytes=1000, metrics_bytes=2000)
TOKEN = "a-token-of-this-run"


def hosted() -> HostedServer:
    app = new_app()

    @app.post("/direct")
    @app.post("/aggregate_metrics")
    async def direct(body: dict[str, Any]) -> dict[str, int]:
        return {"size": len(json.dumps(body))}

    @app.post("/through_app")
    async def through_app(request: Request, unused: str | None = None, body: Any = Body()) -> dict[str, int]:
        return {"size": len(json.dumps(body))}

    return HostedServer("it", app, limits=LIMITS)


async def respond(
    access: Access, path: str = "/direct", *, data: Any = b"{}", host: str = "127.0.0.1", **options: Any
) -> tuple[int, Any]:
    """The status and the body of the response to one request over HTTP."""
    config = uvicorn.Config(Gate(Activities(hosted()), access, LIMITS), log_level="warning")
    with listen(host, 0) as listener:
        async with serving(config, listener), aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
            headers = {"content-type": "application/json", **options.pop("headers", {})}
            async with session.post(url, data=data, headers=headers, **options) as response:
                return response.status, await response.json()


def answer(*args: Any, **options: Any) -> tuple[int, Any]:
    return asyncio.run(respond(*args, **options))


HOSTS = [
    "127.0.0.1:8000",
    "localhost",
    "LOCALHOST.:1",
    "[::1]:80",
    "::1",
    "node-7.cluster:11000",
    "extra.example",
]


@pytest.mark.parametrize("host", HOSTS)
def test_names_of_the_server_are_accepted(host: str) -> None:
    access = Access.to_host("node-7.cluster", ["extra.example"])
    assert answer(access, headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("rebound.example", "rebound.example:11000", "127.0.0.1.evil.example", "", "[::2]"),
        *("127.0.0.1:x@evil.example", "[::1].evil.example"),
    ],
)
def test_other_names_are_refused(host: str) -> None:
    status, body = answer(Access(), headers={"Host": host})
    assert status == 421
    assert "allowed_hosts" in body["detail"] and "127.0.0.1" in body["detail"]


def test_server_on_every_address_is_called_by_the_address_of_the_connection() -> None:
    assert answer(Access.to_host("0.0.0.0"), host="0.0.0.0")[0] == 200


@pytest.mark.parametrize("path", ["/direct", "/ng_activity", "/close_session", "/nowhere"])
def test_server_beyond_loopback_requires_its_token_for_everything(path: str) -> None:
    access = Access.to_host("0.0.0.0", token=TOKEN)
    status, body = answer(access, path)
    assert status == 401
    assert "NEMO_GYM_ACCESS_TOKEN" in body["detail"] and TOKEN not in body["detail"]
    assert answer(access, path, headers={ACCESS_HEADER: TOKEN[:-1]})[0] == 401
    assert answer(access, headers={ACCESS_HEADER: TOKEN})[0] == 200


def test_token_of_a_page_may_be_in_its_address() -> None:
    access = Access(token=TOKEN, query_parameter="token")
    assert answer(access, f"/direct?token={TOKEN}")[0] == 200
    assert answer(access, "/direct?token=other")[0] == 401
    assert answer(Access(token=TOKEN), f"/direct?token={TOKEN}")[0] == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_server_on_loopback_needs_no_token(host: str) -> None:
    assert Access.to_host(host, token=TOKEN).token is None


async def in_pieces(size: int) -> AsyncIterator[bytes]:
    yield b'{"text": "'
    for _ in range(size // 100):
        yield b"x" * 100
    yield b'"}'


@pytest.mark.parametrize("path", ["/direct", "/through_app"])
@pytest.mark.parametrize("chunked", [True, False])
def test_body_beyond_the_limit_is_refused(path: str, chunked: bool) -> None:
    def data(size: int) -> Any:
        return in_pieces(size) if chunked else json.dumps({"text": "x" * size}).encode()

    status, body = answer(Access(), path, data=data(2000))
    assert status == 413
    assert "max_request_mb" in body["detail"]
    assert answer(Access(), path, data=data(900)) == (200, {"size": 900 + len('{"text": ""}')})


def test_metrics_of_a_run_have_a_limit_of_their_own() -> None:
    data = json.dumps({"text": "x" * 1500}).encode()
    assert answer(Access(), "/aggregate_metrics", data=data)[0] == 200
    status, body = answer(Access(), "/aggregate_metrics", data=data * 2)
    assert status == 413 and "max_aggregate_metrics_mb" in body["detail"]


def test_body_beyond_the_limit_is_refused_in_this_process_too() -> None:
    from tests.gym.servers.serving import local_client

    response = asyncio.run(local_client(it=hosted()).post("it", "/direct", json={"text": "x" * 2000}))
    assert response.status == 413
    assert b"max_request_mb" in response.body
