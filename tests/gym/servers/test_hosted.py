import asyncio
import http.client
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from nemo_gym.client import ServerClient, session_cookie_name
from nemo_gym.http import ServerUnreachableError
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.session_middleware import add_sessions
from nemo_gym.servers.sessions import SessionStore
from tests.gym.servers.serving import local_client, new_app, over_both, post, served, served_config


def test_neither_side_can_modify_objects_of_the_other() -> None:
    app = new_app()
    received: list[dict[str, Any]] = []
    state = {"list": [1]}

    async def change(body: dict[str, Any]) -> dict[str, Any]:
        received.append(body)
        body["list"].append("callee")
        return state

    app.post("/change")(change)
    sent = {"list": [0]}

    async def run() -> None:
        client = local_client(it=HostedServer("it", app))
        response = await client.post("it", "/change", json=sent)
        assert sent == {"list": [0]}
        got = await response.json()
        got["list"].append("caller")
        sent["list"].append("later")
        assert state == {"list": [1]}
        assert received == [{"list": [0, "callee"]}]
        assert await response.json() == {"list": [1]}

    asyncio.run(run())


def test_own_middleware_sees_every_request() -> None:
    app = new_app()
    paths: list[str] = []

    @app.middleware("http")
    async def watch(request: Request, call_next: Any) -> Response:
        paths.append(request.url.path)
        response: Response = await call_next(request)
        response.headers["x-watched"] = "1"
        return response

    async def echo(body: dict[str, Any]) -> dict[str, Any]:
        return body

    app.post("/echo")(echo)
    response = post(app, "/echo", json={"a": 1})
    assert (paths, response.headers["x-watched"]) == (["/echo"], "1")


def test_application_without_sessions_can_be_hosted() -> None:
    app = FastAPI()

    async def echo(body: dict[str, Any]) -> dict[str, Any]:
        return body

    app.post("/echo")(echo)
    response = post(app, "/echo", json={"a": 1})
    assert (response.status, asyncio.run(response.read())) == (200, b'{"a":1}')
    assert not response.cookies


def stateful() -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"opened": "yes"}

    app = new_app(lifespan=lifespan)

    async def direct(request: Request) -> str:
        return str(request.state.opened)

    async def through(request: Request, _: None = Depends(lambda: None)) -> str:
        return str(request.state.opened)

    app.post("/direct")(direct)
    app.post("/through")(through)
    return app


def test_lifespan_state_is_available_on_every_request() -> None:
    async def local() -> list[str]:
        server = HostedServer("it", stateful())
        async with server.lifespan():
            return await call_both(local_client(it=server))

    async def call_both(client: ServerClient) -> list[str]:
        return [await (await client.post("it", path)).json() for path in ("/direct", "/through")]

    assert asyncio.run(local()) == ["yes", "yes"]
    with served(HostedServer("it", stateful())) as url:
        client = ServerClient(global_config_dict=served_config("it", url))
        assert asyncio.run(call_both(client)) == ["yes", "yes"]


def streaming() -> FastAPI:
    app = new_app()

    async def parts(fail: bool) -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d," % number
        if fail:
            raise RuntimeError("the stream broke")

    async def direct(body: dict[str, bool]) -> StreamingResponse:
        return StreamingResponse(parts(body["fail"]))

    async def through(body: dict[str, bool], _: None = Depends(lambda: None)) -> StreamingResponse:
        return StreamingResponse(parts(body["fail"]))

    app.post("/direct")(direct)
    app.post("/through")(through)
    return app


@pytest.mark.parametrize("path", ["/direct", "/through"])
def test_stream_is_complete_or_an_error_on_both_transports(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(client: ServerClient) -> bytes:
        whole = await client.post("it", path, json={"fail": False})
        with pytest.raises(ServerUnreachableError, match="it: "):
            await client.post("it", path, json={"fail": True})
        return await whole.read()

    for client in over_both(streaming):
        caplog.clear()
        assert asyncio.run(run(client)) == b"0,1,2,"
        logged = [record for record in caplog.records if record.exc_info]
        assert [record.getMessage() for record in logged] == ["it: RuntimeError('the stream broke')"]


def test_response_over_http_does_not_wait_for_its_background_task() -> None:
    responded = threading.Event()
    waited: list[bool] = []

    def app() -> FastAPI:
        it = new_app()

        async def start(body: dict[str, Any]) -> JSONResponse:
            return JSONResponse({}, background=BackgroundTask(lambda: waited.append(responded.wait(30))))

        it.post("/start")(start)
        return it

    with served(HostedServer("it", app())) as url:
        client = ServerClient(global_config_dict=served_config("it", url))
        assert asyncio.run(client.post("it", "/start", json={})).ok
        responded.set()
    assert waited == [True]


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_large_body_passes_in_both_directions_on_both_transports(size: int) -> None:
    def app() -> FastAPI:
        it = new_app()

        async def double(body: dict[str, str]) -> dict[str, str]:
            return {"text": body["text"] * 2}

        it.post("/double")(double)
        return it

    for client in over_both(app):
        response = asyncio.run(client.post("it", "/double", json={"text": "é" * size}))
        assert asyncio.run(response.json()) == {"text": "é" * (2 * size)}


def test_thousand_concurrent_calls_get_their_own_responses() -> None:
    app = new_app()
    gate = asyncio.Event()
    inside = 0

    async def wait(body: dict[str, int]) -> dict[str, int]:
        nonlocal inside
        inside += 1
        if inside == 1000:
            gate.set()
        await gate.wait()
        return body

    app.post("/wait")(wait)

    async def run() -> list[Any]:
        client = local_client(it=HostedServer("it", app))
        calls = [client.post("it", "/wait", json={"n": number}) for number in range(1000)]
        return [await response.json() for response in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == [{"n": number} for number in range(1000)]


def test_cancelled_caller_cancels_the_route_and_leaves_no_session_in_use() -> None:
    app = FastAPI()
    closed: list[str] = []
    add_sessions(app, SessionStore(session_cookie_name("it"), close_session=closed.append))
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def seed_session(request: Request) -> str:
        return str(request.session[SESSION_ID_KEY])

    async def hang(request: Request, body: dict[str, Any]) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    app.post("/seed_session")(seed_session)
    app.post("/hang")(hang)

    async def run() -> None:
        client = local_client(it=HostedServer("it", app))
        seeded = await client.post("it", "/seed_session")
        call = asyncio.create_task(client.post("it", "/hang", json={}, cookies=seeded.cookies))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert cancelled.is_set()
        async with asyncio.timeout(30):  # a session in use is not closed
            assert (await client.post("it", "/close_session", cookies=seeded.cookies)).status == 204
        assert closed == [await seeded.json()]

    asyncio.run(run())


def test_stream_ends_when_its_caller_leaves() -> None:
    ended = threading.Event()

    def app() -> FastAPI:
        it = new_app()

        async def stream(request: Request) -> StreamingResponse:
            async def parts() -> AsyncIterator[bytes]:
                try:
                    while True:
                        yield b"more,"
                        await asyncio.sleep(0.01)
                finally:
                    ended.set()

            return StreamingResponse(parts())

        it.post("/stream")(stream)
        return it

    with served(HostedServer("it", app())) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        connection.request("POST", "/stream", "{}", {"Content-Type": "application/json"})
        assert connection.getresponse().read(5) == b"more,"
        connection.close()
        assert ended.wait(30)


def test_response_in_process_does_not_wait_for_its_background_task() -> None:
    done: list[str] = []
    responded = asyncio.Event()
    it = new_app()

    async def later() -> None:
        await responded.wait()
        done.append("task")

    async def start(body: dict[str, Any]) -> JSONResponse:
        return JSONResponse({}, background=BackgroundTask(later))

    it.post("/start")(start)
    server = HostedServer("it", it)

    async def run() -> None:
        async with asyncio.timeout(30), server.lifespan():
            assert (await local_client(it=server).post("it", "/start", json={})).ok
            done.append("response")
            responded.set()

    asyncio.run(run())
    assert done == ["response", "task"]
