import asyncio
import re
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request

from nemo_gym.client import ServerClient
from nemo_gym.http import ClientResponse
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.session_middleware import sessions_of
from nemo_gym.servers.sessions import SessionPolicy, SessionStore
from tests.gym.servers.serving import local_client, new_app

ID = "0123456789abcdef" * 2
CAPACITY = 3


def note_app() -> FastAPI:
    """Stores notes in the session; one route is called directly, one through the application."""
    app = new_app(policy=SessionPolicy(capacity=CAPACITY))

    async def put(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        request.session.update(body)
        return dict(request.session)

    async def put_by_asgi(
        request: Request, body: dict[str, Any], _: None = Depends(lambda: None)
    ) -> dict[str, Any]:
        return await put(request, body)

    async def clear(request: Request) -> dict[str, Any]:
        request.session.clear()
        return dict(request.session)

    async def slowly(body: dict[str, Any]) -> dict[str, Any]:
        """Does not use the session."""
        await asyncio.sleep(0)
        return body

    app.post("/slowly")(slowly)
    app.post("/put")(put)
    app.post("/put_by_asgi")(put_by_asgi)
    app.post("/clear")(clear)
    return app


class Caller:
    """A caller that sends back the cookies it receives."""

    def __init__(self, client: ServerClient) -> None:
        self.client = client
        self.cookies: dict[str, Any] = {}

    async def post(self, path: str, json: Any = None) -> Any:
        response = await self.client.post("it", path, json=json, cookies=self.cookies)
        assert response.ok, await response.text()
        self.cookies.update(response.cookies)
        return await response.json()


@pytest.mark.parametrize("path", ["/put", "/put_by_asgi"])
def test_two_callers_never_see_each_others_session(path: str) -> None:
    async def run() -> None:
        client = local_client(it=HostedServer("it", note_app()))
        ann, bob = Caller(client), Caller(client)
        await asyncio.gather(ann.post(path, {"who": "ann"}), bob.post(path, {"who": "bob"}))
        first, second = await asyncio.gather(ann.post(path, {}), bob.post(path, {}))
        assert (first["who"], second["who"]) == ("ann", "bob")
        assert first[SESSION_ID_KEY] != second[SESSION_ID_KEY]

    asyncio.run(run())


def test_session_content_is_kept_for_the_next_request_on_both_transports() -> None:
    async def run() -> Any:
        caller = Caller(local_client(it=HostedServer("it", note_app())))
        await caller.post("/put", {"a": 1})
        await caller.post("/put_by_asgi", {"b": [2]})
        return await caller.post("/put", {})

    notes = asyncio.run(run())
    assert (notes["a"], notes["b"]) == (1, [2])


def test_session_that_a_route_clears_keeps_its_id() -> None:
    async def run() -> tuple[Any, Any]:
        caller = Caller(local_client(it=HostedServer("it", note_app())))
        before = await caller.post("/put", {"a": 1})
        assert await caller.post("/clear") == {}
        return before, await caller.post("/put", {})

    before, after = asyncio.run(run())
    assert after == {SESSION_ID_KEY: before[SESSION_ID_KEY]}


def test_cookie_is_on_every_response() -> None:
    app = note_app()

    async def fail(body: dict[str, Any]) -> None:
        raise RuntimeError("no")

    async def fail_by_asgi(_: None = Depends(lambda: None)) -> None:
        raise RuntimeError("no")

    app.post("/fail")(fail)
    app.post("/fail_by_asgi")(fail_by_asgi)

    async def run() -> list[ClientResponse]:
        client = local_client(it=HostedServer("it", app))
        return [
            await client.post("it", path, json={}, cookies={"ng_session_it": ID})
            for path in ("/put", "/put_by_asgi", "/fail", "/fail_by_asgi", "/made_up")
        ] + [await client.post("it", "/put", json=[], cookies={"ng_session_it": ID})]

    responses = asyncio.run(run())
    assert [response.status for response in responses] == [200, 200, 500, 500, 404, 422]
    for response in responses:
        assert response.cookies["ng_session_it"].value == ID


@pytest.mark.parametrize(
    "foreign", ["", "abc", "../../etc", ID.upper(), ID + "0", f"x{ID}", f"w{ID}", ID + "\n"]
)
def test_session_id_of_another_server_is_replaced(foreign: str) -> None:
    store = SessionStore("c")
    session = store.open(store.identify(foreign))
    assert re.fullmatch(r"[0-9a-f]{32}", session.id)
    assert session[SESSION_ID_KEY] == session.id


def test_known_session_id_is_kept_without_stored_content() -> None:
    store = SessionStore("c")
    store.close(store.open(ID))
    assert store.identify(ID) == ID


def test_concurrent_requests_of_a_caller_share_one_dictionary() -> None:
    store = SessionStore("c")
    first, second = store.open(ID), store.open(ID)
    assert first is second
    store.close(first)
    assert store.open(ID) is second


def test_concurrent_requests_share_one_dictionary_after_one_clears_it() -> None:
    store = SessionStore("c")
    first = store.open(ID)
    first.clear()
    second = store.open(ID)
    assert second is first
    assert second[SESSION_ID_KEY] == ID
    second["a"] = 1
    store.close(first)
    store.close(second)
    assert store.open(ID)["a"] == 1


def test_concurrent_requests_keep_what_each_wrote_in_any_order() -> None:
    store = SessionStore("c")
    first, second = store.open(ID), store.open(ID)
    first["a"] = 1
    store.close(first)
    second["b"] = 2
    store.close(second)
    assert store.open(ID) == {SESSION_ID_KEY: ID, "a": 1, "b": 2}


@pytest.mark.parametrize("emptied", [False, True])
def test_empty_session_uses_no_memory_after_the_request(emptied: bool) -> None:
    store = SessionStore("c")
    for _ in range(100):
        session = store.open(store.identify(None))
        if emptied:
            session.clear()
        store.close(session)
    assert len(store) == 0


def test_session_that_loses_its_content_is_kept_until_it_ends() -> None:
    """Its caller may still have the cookie that says that it is kept."""
    store = SessionStore("c")
    session = store.open(ID)
    session["a"] = 1
    store.close(session)
    del store.open(ID)["a"]
    store.close(session)
    assert store.holds(store.identify(f"{ID}k")) and ID not in store.ended_ids
    asyncio.run(store.end(ID))
    assert len(store) == 0


def put(store: SessionStore, number: int) -> str:
    """Simulate a request that stores content in a session; return the session id."""
    session = store.open(f"{number:032x}")
    session["n"] = number
    store.close(session)
    return session.id


def test_beyond_the_capacity_the_longest_unused_session_is_dropped() -> None:
    store = SessionStore("c", policy=SessionPolicy(capacity=2))
    first, second = put(store, 1), put(store, 2)
    store.close(store.open(first))  # now the second is the longest unused
    third = put(store, 3)
    assert [store.holds(session_id) for session_id in (first, second, third)] == [True, False, True]


def test_dropped_session_is_refused_instead_of_coming_back_empty() -> None:
    store = SessionStore("c", policy=SessionPolicy(capacity=1))
    first, second = put(store, 1), put(store, 2)
    assert "was dropped" in str(store.ended(first))
    assert second not in store.ended_ids


@pytest.mark.parametrize("mark, is_refused", [("k", True), ("", False)], ids=["kept", "not kept"])
def test_kept_session_that_the_server_does_not_know_is_refused(mark: str, is_refused: bool) -> None:
    """The server has restarted, or it has forgotten the id among thousands of others."""
    store = SessionStore("c")
    assert store.identify(ID + mark) == ID
    assert (ID in store.ended_ids) is is_refused
    if is_refused:
        assert "the server has restarted" in str(store.ended(ID))


@pytest.mark.parametrize("path", ["/seed_session", "/run"])
def test_request_that_begins_a_session_gets_a_new_id_if_the_old_session_has_ended(path: str) -> None:
    store = SessionStore("c")
    asyncio.run(store.end(ID))
    assert store.identify(ID, "/look") == ID
    assert store.identify(ID, path) != ID
    assert store.identify("f" * 32 + "k", path) != "f" * 32


def test_ended_ids_are_refused_up_to_a_bound_and_marked_ones_always() -> None:
    store = SessionStore("c", policy=SessionPolicy(capacity=1, ended_ids=2))
    evicted = [put(store, number) for number in range(5)][:-1]
    assert list(store.ended_ids) == evicted[2:]
    assert store.identify(f"{evicted[0]}k") in store.ended_ids


def test_session_in_use_is_never_dropped_for_the_capacity() -> None:
    store = SessionStore("c", policy=SessionPolicy(capacity=1))
    held = store.open(ID)
    held["a"] = 1
    store.close(store.open(ID))  # a second request of the same session has ended
    for number in range(3):
        put(store, number)
    assert ID not in store.ended_ids
    assert store.open(ID) is held


def test_worker_marks_its_sessions_and_accepts_those_of_others() -> None:
    store = SessionStore("c", worker=3)
    assert re.fullmatch(r"3w[0-9a-f]{32}", store.open(store.identify(None)).id)
    assert store.identify(f"1w{ID}") == f"1w{ID}"


def test_cookie_of_another_server_is_ignored() -> None:
    store = SessionStore("ng_session_a")
    assert store.cookie_in(f"ng_session_ab={ID}") is None
    assert store.cookie_in(f"x=1; ng_session_a={ID}; y=2") == ID


def test_route_without_session_use_opens_no_session() -> None:
    async def run() -> None:
        server = HostedServer("it", note_app())
        client = local_client(it=server)
        pending = asyncio.create_task(client.post("it", "/slowly", json={}, cookies={"ng_session_it": ID}))
        await asyncio.sleep(0)
        assert len(server.sessions) == 0
        assert (await pending).cookies["ng_session_it"].value == ID

    asyncio.run(run())


def test_session_with_content_is_not_dropped_during_any_route() -> None:
    async def run() -> None:
        app = note_app()
        may_end = asyncio.Event()

        async def stay(body: dict[str, Any]) -> dict[str, Any]:
            """Does not use the session."""
            is_inside.set()
            await may_end.wait()
            return body

        is_inside = asyncio.Event()
        app.post("/stay")(stay)
        sessions = sessions_of(app)
        assert sessions is not None
        caller = Caller(local_client(it=HostedServer("it", app)))
        await caller.post("/put", {"a": 1})
        pending = asyncio.create_task(caller.post("/stay", {}))
        await is_inside.wait()
        for number in range(CAPACITY + 1):
            put(sessions.store, number)
        may_end.set()
        await pending
        assert (await caller.post("/put", {"b": 2}))["a"] == 1

    asyncio.run(run())
