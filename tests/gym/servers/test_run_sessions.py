"""An agent's run closes the sessions that began in it, on every transport, also after a failure."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from fastapi import FastAPI, Request, Response
from pydantic import Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.client import ServerClient
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.session_cookies import session_id_in
from tests.gym.servers.serving import new_app, served, served_config
from tests.support.virtual_time import run_in_virtual_time
from tests.support.waiting import until

BLOCK = {"host": "127.0.0.1", "port": 1, "entrypoint": ""}


class Rooms(SimpleResourcesServer):
    """One room per session, and a note in the session itself."""

    config: BaseResourcesServerConfig
    rooms: dict[str, str] = Field(default_factory=dict)
    closed: list[str] = Field(default_factory=list)
    is_waiting: bool = False
    """Whether a run waits in `/wait`."""
    holds_closing: bool = False
    """Rooms are closed when this is False."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/wait")(self.wait)
        return app

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        self.rooms[request.session[SESSION_ID_KEY]] = "open"
        return BaseSeedSessionResponse()

    async def wait(self, body: dict[str, Any]) -> None:
        self.is_waiting = True
        await asyncio.Event().wait()

    async def verify(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(request.session[SESSION_ID_KEY] in self.rooms)}

    async def close_session(self, session_id: str) -> None:
        await until(lambda: not self.holds_closing)
        del self.rooms[session_id]
        self.closed.append(session_id)


class Walker(SimpleResponsesAPIAgent):
    """Seeds `env`, calls its own `/v1/responses`, verifies. The row switches steps on. Passes cookies on."""

    config: BaseResponsesAPIAgentConfig

    async def responses(self, request: Request, response: Response, body: dict[str, Any]) -> dict[str, Any]:
        cookies = dict(request.cookies)
        if body.get("seeds"):
            seeded = await self.server_client.post("env", "/seed_session", json={}, cookies=cookies)
            cookies.update({name: morsel.value for name, morsel in seeded.cookies.items()})
        if body.get("breaks"):
            raise RuntimeError("lost")
        for name, value in cookies.items() if body.get("passes_cookies", True) else ():
            response.set_cookie(name, value)
        return {}

    async def run(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        cookies: dict[str, Any] = dict(request.cookies)
        if not body.get("seeds"):
            cookies.update((await self.server_client.post("env", "/seed_session", json={})).cookies)
        played = await self.server_client.post("agent", "/v1/responses", json=body, cookies=cookies)
        played.raise_for_status()
        cookies = dict(played.cookies)
        if body.get("fails"):
            raise RuntimeError("lost")
        if body.get("waits"):
            await self.server_client.post("env", "/wait", json={}, cookies=cookies)
        verified = await self.server_client.post("env", "/verify", json=body, cookies=cookies)
        verified.raise_for_status()
        return dict(await verified.json())


class World:
    """An agent and its environment, in this process or each behind HTTP."""

    def __init__(
        self,
        env: FastAPI | None = None,
        agent: type[SimpleResponsesAPIAgent] = Walker,
        rooms: type[Rooms] = Rooms,
        close_session_timeout_s: float = 30.0,
        **fields_of_rooms: Any,
    ) -> None:
        self.rooms = rooms(
            config=BaseResourcesServerConfig(name="env", **BLOCK),
            server_client=MagicMock(spec=ServerClient),
            **fields_of_rooms,
        )
        self._env = env
        self._agent = agent
        self._settings = {"close_session_timeout_s": close_session_timeout_s}

    def hosted(self, client: ServerClient) -> dict[str, HostedServer]:
        config = BaseResponsesAPIAgentConfig(name="agent", **BLOCK, **self._settings)
        agent = self._agent(config=config, server_client=client)
        env = self._env or self.rooms.setup_webserver()
        return {"env": HostedServer("env", env), "agent": HostedServer("agent", agent.setup_webserver())}

    @asynccontextmanager
    async def open(self, transport: str) -> AsyncIterator[ServerClient]:
        local: dict[str, HostedServer] = {}
        values: dict[str, Any] = {}
        client = ServerClient(
            global_config_dict=values, local_servers=local if transport == "embedded" else {}
        )
        servers = self.hosted(client)
        with ExitStack() as serving:
            if transport == "embedded":
                local.update(servers)
            else:
                for name, server in servers.items():
                    values.update(served_config(name, serving.enter_context(served(server))))
            yield client


@pytest.fixture(params=["embedded", "http"])
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("seeds", [False, True], ids=["in the run", "in its own /v1/responses"])
def test_sessions_are_closed_after_a_successful_run(transport: str, seeds: bool) -> None:
    world = World()

    async def run() -> None:
        async with world.open(transport) as client:
            done = await client.post("agent", "/run", json={"seeds": seeds})
            assert await done.json() == {"reward": 1.0}
            assert (len(world.rooms.closed), world.rooms.rooms) == (1, {})

    asyncio.run(run())


def test_sessions_are_closed_after_a_failed_run_and_the_error_is_the_runs(transport: str) -> None:
    world = World()

    async def run() -> None:
        async with world.open(transport) as client:
            done = await client.post("agent", "/run", json={"fails": True})
            assert (done.status, await done.json()) == (500, "RuntimeError('lost')")
            assert (len(world.rooms.closed), world.rooms.rooms) == (1, {})

    asyncio.run(run())


@pytest.mark.parametrize("agent", ["plain", "with an application of its own"])
@pytest.mark.parametrize("row", [{"breaks": True}, {"passes_cookies": False}])
def test_session_of_a_nested_call_is_closed_without_its_cookie_being_passed_on(
    transport: str, agent: str, row: dict[str, Any]
) -> None:
    world = World(agent=Walker if agent == "plain" else WithAppOfItsOwn)

    async def run() -> None:
        async with world.open(transport) as client:
            done = await client.post("agent", "/run", json={"seeds": True, **row})
            assert done.ok is not row.get("breaks", False)
            assert (len(world.rooms.closed), world.rooms.rooms) == (1, {})

    asyncio.run(run())


class TwoSessions(Walker):
    """Opens two sessions in its `/v1/responses` and chooses the first."""

    async def responses(self, request: Request, response: Response, body: dict[str, Any]) -> dict[str, Any]:
        first, second = [await self.server_client.post("env", "/seed_session", json={}) for _ in range(2)]
        cookies = {name: morsel.value for name, morsel in first.cookies.items()}
        for name, value in cookies.items():
            response.set_cookie(name, value)
        return {"chosen": cookies, "other": second.cookies["ng_session_env"].value}


def test_nested_call_returns_only_the_cookies_that_its_endpoint_sets(transport: str) -> None:
    world = World(agent=TwoSessions)

    async def run() -> None:
        async with world.open(transport) as client:
            played = await client.post("agent", "/v1/responses", json={})
            chosen = (await played.json())["chosen"]
            assert {name: played.cookies[name].value for name in chosen} == chosen
            await client.post("agent", "/run", json={"seeds": True})
            assert len(world.rooms.closed) == 2

    asyncio.run(run())


def test_sessions_are_closed_after_a_cancelled_run() -> None:
    world = World()

    async def run() -> None:
        async with world.open("embedded") as client:
            running = asyncio.create_task(client.post("agent", "/run", json={"waits": True}))
            await until(lambda: world.rooms.is_waiting)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await until(lambda: world.rooms.closed)

    asyncio.run(run())


class SlowRooms(Rooms):
    """Its `/seed_session` opens a room, then does not respond until `may_respond` is set."""

    may_respond: threading.Event = Field(default_factory=threading.Event)
    uses_middleware: bool = False

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        if self.uses_middleware:
            app.middleware("http")(pass_on)
        return app

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        await super().seed_session(request, body)
        await until(self.may_respond.is_set)
        return BaseSeedSessionResponse()


async def pass_on(request: Request, call_next: Any) -> Any:
    return await call_next(request)


@pytest.mark.parametrize("uses_middleware", [False, True])
def test_session_is_closed_if_its_caller_is_cancelled_before_it_knows_of_it(uses_middleware: bool) -> None:
    world = World(rooms=SlowRooms, uses_middleware=uses_middleware)

    async def run() -> None:
        async with world.open("embedded") as client:
            running = asyncio.create_task(client.post("agent", "/run", json={}))
            await until(lambda: world.rooms.rooms)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await until(lambda: world.rooms.closed)

    asyncio.run(run())
    assert world.rooms.rooms == {}


def test_session_is_closed_if_its_caller_disconnects_before_it_knows_of_it() -> None:
    world = World(rooms=SlowRooms)

    async def run() -> None:
        async with world.open("http") as client:
            seeding = asyncio.create_task(client.post("env", "/seed_session", json={}))
            await until(lambda: world.rooms.rooms)
            seeding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await seeding
            world.rooms.may_respond.set()
            await until(lambda: world.rooms.closed)

    asyncio.run(run())
    assert world.rooms.rooms == {}


def test_cancelled_run_does_not_wait_for_its_sessions_to_close() -> None:
    world = World()
    world.rooms.holds_closing = True

    async def run() -> None:
        async with world.open("embedded") as client:
            with pytest.raises(Exception, match=r"agent.*/run"):
                await client.post("agent", "/run", json={"waits": True}, timeout=0.2)
            assert world.rooms.rooms

    _, elapsed_s = run_in_virtual_time(run())
    assert elapsed_s == pytest.approx(0.2)


def test_slow_closing_delays_a_run_by_the_timeout_only_and_continues(transport: str) -> None:
    timeout_s = {"embedded": 0.05, "http": 1.0}[transport]  # over HTTP, the request has to arrive in time
    world = World(close_session_timeout_s=timeout_s)
    world.rooms.holds_closing = True

    async def run() -> None:
        async with world.open(transport) as client:
            done = await client.post("agent", "/run", json={})
            assert await done.json() == {"reward": 1.0}
            assert world.rooms.closed == []
            world.rooms.holds_closing = False
            await until(lambda: world.rooms.closed)

    asyncio.run(run())


def test_session_of_the_caller_is_not_closed(transport: str) -> None:
    world = World()

    async def run() -> None:
        async with world.open(transport) as client:
            seeded = await client.post("env", "/seed_session", json={})
            done = await client.post("agent", "/run", json={"seeds": True}, cookies=seeded.cookies)
            assert await done.json() == {"reward": 1.0}
            assert world.rooms.closed == []

    asyncio.run(run())


class WithAppOfItsOwn(Walker):
    """An agent that builds its application without the base class, with a middleware of its own."""

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/v1/responses")(self.responses)
        app.post("/run")(self.run)

        app.middleware("http")(pass_on)
        return app


@pytest.mark.parametrize("row", [{}, {"fails": True}])
def test_agent_with_its_own_application_closes_sessions(transport: str, row: dict[str, Any]) -> None:
    world = World(agent=WithAppOfItsOwn)

    async def run() -> None:
        async with world.open(transport) as client:
            await client.post("agent", "/run", json=row)
            assert len(world.rooms.closed) == 1

    asyncio.run(run())
    assert world.rooms.rooms == {}


class Diarist(SimpleResponsesAPIAgent):
    """Keeps notes in its own session."""

    config: BaseResponsesAPIAgentConfig
    closed: ClassVar[list[str]] = []

    async def responses(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        request.session["note"] = "asked"
        return {}

    async def run(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        request.session["note"] = "played"
        if body.get("fails"):
            raise RuntimeError("lost")
        return {"reward": 1.0}

    async def close_session(self, session_id: str) -> None:
        self.closed.append(session_id)


class DiaristWithAppOfItsOwn(Diarist, WithAppOfItsOwn):
    pass


@pytest.mark.parametrize("agent", [Diarist, DiaristWithAppOfItsOwn])
@pytest.mark.parametrize("row", [{}, {"fails": True}])
def test_session_of_the_agent_itself_ends_with_the_run(
    transport: str, agent: type[Diarist], row: dict[str, Any]
) -> None:
    agent.closed.clear()

    async def run() -> None:
        async with World(agent=agent).open(transport) as client:
            played = await client.post("agent", "/run", json=row)
            await until(lambda: agent.closed)
            assert agent.closed == [session_id_in(played.cookies["ng_session_agent"])]
            again = await client.post("agent", "/v1/responses", json={}, cookies=played.cookies)
            assert again.status == 410
            second = await client.post("agent", "/run", json={}, cookies=played.cookies)
            assert second.status == 200, "a run begins a session of its own"
            await until(lambda: len(agent.closed) == 2)

    asyncio.run(run())


@pytest.mark.parametrize("agent", [Diarist, DiaristWithAppOfItsOwn])
def test_session_that_the_caller_has_on_the_agent_survives_the_run(
    transport: str, agent: type[Diarist]
) -> None:
    agent.closed.clear()

    async def run() -> None:
        async with World(agent=agent).open(transport) as client:
            asked = await client.post("agent", "/v1/responses", json={})
            await client.post("agent", "/run", json={}, cookies=asked.cookies)
            again = await client.post("agent", "/v1/responses", json={}, cookies=asked.cookies)
            assert (again.status, agent.closed) == (200, [])

    asyncio.run(run())


def foreign_env(status: int, calls: list[str]) -> FastAPI:
    """An environment without our base class; its cookie says that it keeps a session."""
    app = FastAPI()

    async def anything(request: Request, response: Response, path: str) -> Any:
        calls.append(path)
        response.set_cookie("ng_session_env", "0" * 32 + "k")
        if path == "close_session":
            return Response("no", status)
        return {"reward": 1.0}

    app.post("/{path}")(anything)
    return app


def test_server_without_the_route_is_called_once_and_then_skipped(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    world = World(env=foreign_env(404, calls))

    async def run() -> None:
        async with world.open(transport) as client:
            for _ in range(3):
                assert await (await client.post("agent", "/run", json={})).json() == {"reward": 1.0}

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert calls.count("verify") == 3
    assert calls.count("close_session") == 1
    assert not caplog.records


def test_failed_closing_does_not_change_the_result_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []
    world = World(env=foreign_env(500, calls))

    async def run() -> None:
        async with world.open("embedded") as client:
            for _ in range(3):
                assert await (await client.post("agent", "/run", json={})).json() == {"reward": 1.0}

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert calls.count("close_session") == 3
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["env: cannot close a session: 500 no"]


def test_server_that_keeps_nothing_is_not_called(transport: str) -> None:
    paths: list[str] = []
    app = new_app("env")

    async def anything(path: str) -> dict[str, float]:
        paths.append(path)
        return {"reward": 1.0}

    app.post("/{path}")(anything)
    world = World(env=app)

    async def run() -> None:
        async with world.open(transport) as client:
            assert await (await client.post("agent", "/run", json={})).json() == {"reward": 1.0}

    asyncio.run(run())
    assert paths == ["seed_session", "verify"]


def test_session_that_holds_content_is_closed_without_a_close_session_of_the_environment() -> None:
    app = new_app("env")

    async def note(request: Request, body: dict[str, Any]) -> dict[str, float]:
        request.session["note"] = 1
        return {"reward": 1.0}

    app.post("/seed_session")(note)
    app.post("/verify")(note)
    hosted: list[HostedServer] = []

    class Kept(World):
        def hosted(self, client: ServerClient) -> dict[str, HostedServer]:
            servers = super().hosted(client)
            hosted.append(servers["env"])
            return servers

    async def run() -> None:
        async with Kept(env=app).open("embedded") as client:
            assert await (await client.post("agent", "/run", json={})).json() == {"reward": 1.0}

    asyncio.run(run())
    assert not hosted[0].sessions._kept
