"""A hosted server responds as FastAPI does, directly and through the application."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from nemo_gym.http import (
    FAILURE_KIND_HEADER,
    FAILURE_SERVER_HEADER,
    FAILURE_STATUS_HEADER,
    Call,
    ClientResponse,
)
from nemo_gym.servers.direct_route import compile_routes
from nemo_gym.servers.hosted import HostedServer
from tests.gym.servers.routes import SHARED, build
from tests.gym.servers.serving import new_app
from tests.support.asgi_transport import AsgiTransport

PLAIN = build()
HOSTED = HostedServer("it", build())
GOOD = b'{"name": "ann", "price": 2, "extra": [1]}'
PATHS = sorted(route.path for route in PLAIN.routes if "POST" in (getattr(route, "methods", None) or ()))
RAISING = {"/plain_bug", "/plain_wrong_response", "/plain_nan_no_model", "/plain_handler_fails"}
"""Routes that raise an exception which FastAPI itself does not handle."""
BODIES = [
    b"",
    b"null",
    b"[]",
    b"7",
    b'"text"',
    b"{not json",
    b"{}",
    b'{"name": 3}',
    b'{"name": "ann", "price": "much"}',
    b'{"name": "ann", "price": NaN}',
    b'{"name": "ann", "note": "' + "größe 你好 🎈".encode() + b'"}',
    b'{"name": "ann", "big": 123456789012345678901234567890, "nested": {"a": [null, 1.0, 1e5, -0.0]}}',
    b'{"name": "\xff"}',
    b'{"longName": "ann"}',
    b'{"name": "ann", "name": "bob"}',
    b"[" * 100_000,
]


def call_for(path: str, body: bytes, content_type: str = "application/json", query: str = "") -> Call:
    headers = (("x-mine", "1"),)
    if content_type != "application/json":
        return Call(
            "POST", path, body, False, {"mine": "c"}, query, (*headers, ("content-type", content_type))
        )
    return Call("POST", path, body, True, {"mine": "c"}, query, headers)


Observed = tuple[int, list[tuple[str, str]], bytes]


def observe(response: ClientResponse) -> Observed:
    """Status, headers and body, without the headers that only a hosted server adds."""
    ours = {FAILURE_KIND_HEADER, FAILURE_SERVER_HEADER, FAILURE_STATUS_HEADER, "content-length"}
    headers = [
        (name.lower(), value)
        for name, value in response.headers.items()
        if name.lower() not in ours and "ng_session" not in value
    ]
    return response.status, sorted(headers), response._body


async def plain_fastapi(call: Call) -> Observed | str:
    """The response of FastAPI itself, or the exception that it does not handle."""
    try:
        return observe(await AsgiTransport(PLAIN).send(call))
    except Exception as error:
        return repr(error)


async def three_ways(call: Call) -> list[Observed]:
    """The responses in this process, over HTTP, and through the application (forced by an unused query)."""
    return [
        observe(await HOSTED.send(call)),
        observe(await AsgiTransport(HOSTED).send(call)),
        observe(await HOSTED.send(call._replace(query="unused=1"))),
    ]


@pytest.mark.parametrize("path", PATHS)
def test_every_route_responds_as_fastapi_does(path: str) -> None:
    call = call_for(path.replace("{number}", "7"), GOOD)

    async def run() -> tuple[Observed | str, list[Observed]]:
        return await plain_fastapi(call), await three_ways(call)

    expected, responses = asyncio.run(run())
    if path in RAISING:
        assert isinstance(expected, str)
        expected = (500, [("content-type", "application/json")], json.dumps(expected).encode())
        # A validation error names the line of code, which differs between applications.
        if path == "/plain_wrong_response":
            expected = responses[-1]
            assert expected[0] == 500
    if path == "/plain_background_fails":
        assert expected == "RuntimeError('in the background')"
        expected = (200, [("content-type", "application/json")], b'{"done":1}')
    assert responses == [expected] * 3


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:25].decode("latin-1"))
@pytest.mark.parametrize("path", ["/plain_item", "/plain_any", "/plain_loose", "/plain_optional", "/depends"])
def test_every_body_is_accepted_or_refused_as_by_fastapi(path: str, body: bytes) -> None:
    async def run() -> tuple[Observed | str, list[Observed]]:
        return await plain_fastapi(call_for(path, body)), await three_ways(call_for(path, body))

    expected, responses = asyncio.run(run())
    if isinstance(expected, str):
        expected = responses[-1]
        assert expected[0] == 500
    assert responses == [expected] * 3


@pytest.mark.fast_path
@pytest.mark.parametrize("path", ["/plain_item", "/plain_any", "/plain_loose"])
def test_half_a_surrogate_pair_is_returned_by_direct_routes(path: str) -> None:
    """FastAPI responds with 500, because it cannot write it."""
    call = call_for(path, b'{"name": "half \\ud83d"}')

    async def run() -> tuple[Observed | str, list[Observed]]:
        return await plain_fastapi(call), await three_ways(call)

    expected, (here, over_http, through_app) = asyncio.run(run())
    assert isinstance(expected, str) and through_app[0] == 500
    assert here == over_http and here[0] == 200
    assert b"half \\ud83d" in here[2]


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "application/vnd.x+json", "text/plain", "application/octet-stream"],
)
def test_every_content_type_is_accepted_or_refused_as_by_fastapi(content_type: str) -> None:
    call = call_for("/plain_item", GOOD, content_type)

    async def run() -> tuple[Observed | str, list[Observed]]:
        return await plain_fastapi(call), await three_ways(call)

    expected, responses = asyncio.run(run())
    assert responses == [expected] * 3


@pytest.mark.parametrize("name", ["Upper", "trap", "fine"])
def test_failure_of_a_validator_is_a_response(name: str) -> None:
    call = call_for("/plain_picky", json.dumps({"name": name}).encode())
    responses = asyncio.run(three_ways(call))
    assert responses == [responses[0]] * 3
    assert responses[0][0] == {"Upper": 422, "trap": 500, "fine": 200}[name]


@pytest.mark.fast_path
def test_exactly_the_plain_routes_need_no_application() -> None:
    direct = {path for _, path in compile_routes(build())}
    assert direct == {path for path in [*PATHS, "/plain_get"] if path.startswith("/plain_")}


def test_validation_error_names_field_and_problem() -> None:
    response = asyncio.run(HOSTED.send(call_for("/plain_item", b'{"price": 1}')))
    assert (response.status, json.loads(response._body)) == (
        422,
        {
            "detail": [
                {"type": "missing", "loc": ["body", "name"], "msg": "Field required", "input": {"price": 1}}
            ]
        },
    )


def test_sync_function_runs_off_the_event_loop() -> None:
    response = asyncio.run(HOSTED.send(call_for("/plain_sync", GOOD)))
    assert json.loads(response._body) == {"off_the_loop": True, "name": "ann"}


@pytest.mark.parametrize(("path", "done"), [("/plain_background", "response"), ("/background", "parameter")])
def test_background_task_runs(path: str, done: str) -> None:
    log: list[str] = []
    server = HostedServer("it", build(log))

    async def run() -> ClientResponse:
        async with server.lifespan():
            return await server.send(call_for(path, GOOD))

    assert (asyncio.run(run()).status, log) == (200, [done])


def test_shared_response_object_has_no_cookie_of_another_caller() -> None:
    async def run() -> list[ClientResponse]:
        call = call_for("/plain_shared_response", GOOD)
        return [await HOSTED.send(call) for _ in range(3)]

    responses = asyncio.run(run())
    for response in responses:
        assert len(response.headers.getall("set-cookie")) == 1
    assert len({response.cookies["ng_session_it"].value for response in responses}) == 3
    assert "set-cookie" not in SHARED.headers


def test_handler_for_every_exception_is_used() -> None:
    app = new_app()

    async def fail(body: dict[str, Any]) -> None:
        raise RuntimeError("no")

    @app.exception_handler(Exception)
    async def handle(request: Request, error: Exception) -> Response:
        return JSONResponse({"handled": str(error)}, status_code=599)

    app.post("/fail")(fail)

    async def run() -> list[Observed]:
        server = HostedServer("it", app)
        call = call_for("/fail", b"{}")
        return [observe(await server.send(call)), observe(await server.send(call._replace(query="x=1")))]

    direct, through = asyncio.run(run())
    assert direct == through == (599, [("content-type", "application/json")], b'{"handled":"no"}')


def test_route_with_a_path_parameter_that_comes_first_wins() -> None:
    app = new_app()

    async def any_name(name: str) -> str:
        return f"any {name}"

    async def exact() -> str:
        return "exact"

    app.post("/{name}")(any_name)
    app.post("/exact")(exact)
    assert asyncio.run(HostedServer("it", app).send(call_for("/exact", b"")))._body == b'"any exact"'


def test_the_first_of_two_routes_with_one_path_wins() -> None:
    app = new_app()

    async def first() -> str:
        return "first"

    async def second() -> str:
        return "second"

    app.post("/same")(first)
    app.post("/same")(second)
    assert asyncio.run(HostedServer("it", app).send(call_for("/same", b"")))._body == b'"first"'
