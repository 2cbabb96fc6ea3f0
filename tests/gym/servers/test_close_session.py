"""`POST /close_session` and the `close_session` of an environment, in this process and over HTTP."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import Depends, FastAPI, Request
from pydantic import Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    SimpleResourcesServer,
)
from nemo_gym.client import ServerClient
from nemo_gym.errors import ComponentError
from nemo_gym.http import ServerCallError
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.servers.direct_route import is_direct_supported
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.session_middleware import add_sessions
from nemo_gym.servers.sessions import SessionPolicy, SessionStore
from tests.gym.servers.serving import local_client, over_both, served, served_config
from tests.support.waiting import until

COOKIE = "ng_session_it"
CONFIG = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name="it")


class Rooms(SimpleResourcesServer):
    """One room per session."""

    config: BaseResourcesServerConfig
    rooms: dict[str, int] = Field(default_factory=dict)
    closed: list[str] = Field(default_factory=list)
    _may_leave: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    _is_inside: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/stay")(self.stay)
        app.post("/look")(self.look)
        app.post("/look_by_asgi")(self.look_by_asgi)
        app.post("/leave")(self.leave)
        app.post("/weather")(self.weather)
        return app

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        self.rooms[request.session[SESSION_ID_KEY]] = 1
        return BaseSeedSessionResponse()

    async def stay(self, request: Request) -> bool:
        """Wait for a call of `/leave`; return whether the room still exists."""
        self._is_inside.set()
        await self._may_leave.wait()
        return request.session[SESSION_ID_KEY] in self.rooms

    async def leave(self) -> None:
        await self._is_inside.wait()
        self._may_leave.set()

    async def look(self, request: Request) -> bool:
        return request.session[SESSION_ID_KEY] in self.rooms

    async def look_by_asgi(self, request: Request, _: None = Depends(lambda: None)) -> bool:
        return await self.look(request)

    async def weather(self, body: dict[str, Any]) -> str:
        """Does not use the session."""
        return "rain"

    async def close_session(self, session_id: str) -> None:
        self.closed.append(session_id)
        self.rooms.pop(session_id, None)


def rooms(cls: type[Rooms] = Rooms) -> Rooms:
    return cls(config=CONFIG, server_client=MagicMock(spec=ServerClient))


def on_both(server: Callable[[], Rooms], check: Callable[[ServerClient, Rooms], Awaitable[None]]) -> None:
    """Run the check in this process and over HTTP."""
    made: list[Rooms] = []

    def app() -> FastAPI:
        made.append(server())
        return made[-1].setup_webserver()

    async def run(client: ServerClient) -> None:
        await check(client, made[-1])

    for client in over_both(app):
        asyncio.run(run(client))


async def seed(client: ServerClient) -> dict[str, str]:
    seeded = await client.post("it", "/seed_session", json={})
    assert seeded.status == 200
    return {COOKIE: seeded.cookies[COOKIE].value}


async def close(client: ServerClient, cookies: dict[str, str]) -> int:
    return (await client.post("it", "/close_session", cookies=cookies)).status


def test_closing_frees_the_state_of_the_environment_once() -> None:
    async def check(client: ServerClient, server: Rooms) -> None:
        cookies, other = await seed(client), await seed(client)
        assert [await close(client, cookies) for _ in range(3)] == [204, 204, 204]
        assert server.closed == [cookies[COOKIE].removesuffix("k")]
        assert list(server.rooms) == [other[COOKIE].removesuffix("k")]

    on_both(rooms, check)


@pytest.mark.parametrize("cookies", [{}, {COOKIE: "0" * 32}, {COOKIE: "made up"}])
def test_closing_a_session_that_never_began_responds_with_204(cookies: dict[str, str]) -> None:
    async def check(client: ServerClient, server: Rooms) -> None:
        assert await close(client, cookies) == 204
        assert server.closed == []

    on_both(rooms, check)


@pytest.mark.parametrize("path", ["/look", "/look_by_asgi"])
def test_late_request_of_a_closed_session_is_refused_as_infrastructure(path: str) -> None:
    async def check(client: ServerClient, server: Rooms) -> None:
        cookies = await seed(client)
        await close(client, cookies)
        late = await client.post("it", path, cookies=cookies)
        assert late.status == 410
        assert "is closed" in (await late.json())["detail"]
        error = ServerCallError(late)
        assert (error.kind, error.server, error.origin_status) == ("infrastructure", "it", 410)

    on_both(rooms, check)


def test_seeding_with_the_cookie_of_a_closed_session_begins_a_new_one() -> None:
    async def check(client: ServerClient, server: Rooms) -> None:
        cookies = await seed(client)
        await close(client, cookies)
        again = await client.post("it", "/seed_session", json={}, cookies=cookies)
        assert again.status == 200
        assert again.cookies[COOKIE].value != cookies[COOKIE]
        looked = await client.post("it", "/look", cookies=again.cookies)
        assert await looked.json() is True

    on_both(rooms, check)


def test_cookie_marks_kept_sessions() -> None:
    async def check(client: ServerClient, server: Rooms) -> None:
        weather = await client.post("it", "/weather", json={})
        value = weather.cookies[COOKIE].value
        if is_direct_supported():  # otherwise every request opens a session
            assert not value.endswith("k")
        looked = await client.post("it", "/look", cookies=weather.cookies)
        assert looked.cookies[COOKIE].value == value.removesuffix("k") + "k"

    on_both(rooms, check)


def test_session_in_use_is_closed_when_its_last_request_is_over() -> None:
    async def check(client: ServerClient, server: Rooms) -> None:
        cookies = await seed(client)
        staying = asyncio.create_task(client.post("it", "/stay", cookies=cookies))
        await until(server._is_inside.is_set)
        is_refused = False
        async with asyncio.timeout(30):
            while not is_refused:  # over HTTP, the first timeouts may come before the request has arrived
                # A timeout of the caller does not stop the closing.
                with pytest.raises(Exception, match="close_session"):
                    await client.post("it", "/close_session", cookies=cookies, timeout=0.05)
                is_refused = (await client.post("it", "/look", cookies=cookies)).status == 410
        assert server.closed == []
        await client.post("it", "/leave")
        assert await (await staying).json() is True  # its room exists until the request ends
        assert await close(client, cookies) == 204
        assert server.closed == [cookies[COOKIE].removesuffix("k")]

    on_both(rooms, check)


class BlockingRooms(Rooms):
    thread: str = ""

    def close_session(self, session_id: str) -> None:  # type: ignore[override]  # a plain function is allowed
        self.thread = threading.current_thread().name
        self.closed.append(session_id)


def test_plain_function_closes_in_a_thread() -> None:
    server = rooms(BlockingRooms)
    assert isinstance(server, BlockingRooms)

    async def run() -> None:
        client = local_client(it=HostedServer("it", server.setup_webserver()))
        await close(client, await seed(client))

    asyncio.run(run())
    assert len(server.closed) == 1
    assert server.thread != threading.main_thread().name


class BrokenRooms(Rooms):
    async def close_session(self, session_id: str) -> None:
        raise RuntimeError("the key is lost")


def test_error_of_close_session_is_logged_and_ends_the_session(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client = local_client(it=HostedServer("it", rooms(BrokenRooms).setup_webserver()))
        cookies = await seed(client)
        assert await close(client, cookies) == 204
        assert (await client.post("it", "/look", cookies=cookies)).status == 410

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["it: RuntimeError('the key is lost')"]


class MistakenRooms(Rooms):
    async def close_session(self) -> None:  # type: ignore[override]  # the mistake
        return None


def test_close_session_with_other_arguments_is_an_error_at_start() -> None:
    with pytest.raises(ComponentError, match="must take one argument"):
        rooms(MistakenRooms).setup_webserver()


def test_route_of_that_name_is_an_error_at_start() -> None:
    app = rooms().setup_webserver()
    app.post("/close_session")(lambda: None)
    with pytest.raises(ComponentError, match=r"it: the route /close_session is reserved.*rename"):
        HostedServer("it", app)


def test_dropped_session_is_closed_and_refused_with_410() -> None:
    server = rooms()
    store = SessionStore(COOKIE, policy=SessionPolicy(capacity=2), close_session=server.close_session)
    app = FastAPI()
    add_sessions(app, store)
    app.post("/seed_session")(server.seed_session)
    app.post("/look")(server.look)

    async def run() -> None:
        client = local_client(it=HostedServer("it", app))
        jars = [await seed(client) for _ in range(4)]
        statuses = [(await client.post("it", "/look", cookies=jar)).status for jar in jars]
        assert statuses == [410, 410, 200, 200]
        refused = await client.post("it", "/look", cookies=jars[0])
        assert ServerCallError(refused).kind == "infrastructure"
        assert await close(client, jars[0]) == 204
        assert server.closed == [jar[COOKIE].removesuffix("k") for jar in jars[:2]]

    asyncio.run(run())


def test_middleware_of_an_environment_sees_close_session() -> None:
    paths = []
    server = rooms()
    app = server.setup_webserver()

    @app.middleware("http")
    async def note(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
        paths.append(request.url.path)
        return await call_next(request)

    async def run() -> None:
        client = local_client(it=HostedServer("it", app))
        assert await close(client, await seed(client)) == 204

    asyncio.run(run())
    assert paths == ["/seed_session", "/close_session"]
    assert len(server.closed) == 1


def test_sessions_open_at_shutdown_are_closed() -> None:
    server = rooms()

    async def embedded() -> None:
        hosted = HostedServer("it", server.setup_webserver())
        async with hosted.lifespan():
            await seed(local_client(it=hosted))
            assert server.closed == []

    asyncio.run(embedded())
    assert len(server.closed) == 1
    with served(HostedServer("it", server.setup_webserver())) as url:
        asyncio.run(seed(ServerClient(global_config_dict=served_config("it", url))))
    assert len(server.closed) == 2


def test_shutdown_during_the_closing_of_a_session_in_use_finishes_the_closing() -> None:
    closed: list[str] = []

    async def run() -> None:
        store = SessionStore(COOKIE, close_session=closed.append)
        session = store.open(store.identify(None))
        closing = asyncio.create_task(store.end(session.id))
        for _ in range(3):  # until it waits for the request
            await asyncio.sleep(0)
        shutdown = asyncio.create_task(store.end_all())
        await asyncio.sleep(0)
        store.close(session)
        async with asyncio.timeout(30):
            await asyncio.gather(closing, shutdown)
        assert closed == [session.id]

    asyncio.run(run())
