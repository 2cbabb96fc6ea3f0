import asyncio
import json
import re
from collections.abc import Iterator
from io import BytesIO
from itertools import count, pairwise
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import orjson
import pytest
import yaml
from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel

import nemo_gym
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.client import ServerAddress, base_url, session_cookie_name
from nemo_gym.config_types import BaseServerConfig, ConfigError
from nemo_gym.errors import HeadServerUnreachableError, NotAHeadServerError
from nemo_gym.http import ServerUnreachableError
from nemo_gym.server_utils import ServerClient, get_server_url
from nemo_gym.servers.head import HeadServer
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.serve import serve_head
from tests.gym.http.raw_server import raw_response, serving
from tests.gym.servers.serving import local_client, new_app, served, served_config
from tests.support.commands import free_port

ID = "0123456789abcdef" * 2
TWO_SERVERS = {
    "tools": {"resources_servers": {"x": {"host": "127.0.0.1", "port": 1}}},
    "policy_model": {"responses_api_models": {"y": {"host": "127.0.0.1", "port": 2}}},
    "no_port_yet": {"resources_servers": {"x": {"host": "127.0.0.1"}}},
    "policy_base_url": "http://127.0.0.1:3",
}


def mirror() -> FastAPI:
    """Returns the request it received, on direct routes and through the application."""
    app = new_app()

    async def look(request: Request, body: Any = None) -> dict[str, Any]:
        return {
            "method": request.method,
            "path": request.url.path,
            "query": sorted(request.query_params.multi_items()),
            "x-mine": request.headers.getlist("x-mine"),
            "content-type": request.headers.getlist("content-type"),
            "cookies": {name: value for name, value in request.cookies.items() if "session" not in name},
            "session": request.session["session_id"],
            "body": (await request.body()).decode("utf-8", "replace"),
        }

    async def direct(request: Request) -> dict[str, Any]:
        return await look(request)

    async def direct_json(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        return await look(request)

    async def through(request: Request, _: None = Depends(lambda: None)) -> dict[str, Any]:
        return await look(request)

    async def anywhere(request: Request, rest: str) -> dict[str, Any]:
        return await look(request) | {"rest": rest}

    app.post("/direct")(direct)
    app.post("/direct_json")(direct_json)
    app.post("/through")(through)
    app.get("/through")(through)
    app.post("/any/{rest:path}")(anywhere)
    return app


COOKIE = session_cookie_name("it")
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "json": ("POST", "/direct_json", {"json": {"a": 1}}),
    "json through": ("POST", "/through", {"json": [1, "é"]}),
    "no body": ("POST", "/direct", {}),
    "get": ("GET", "/through", {}),
    "headers": ("POST", "/direct", {"headers": {"X-Mine": "1"}}),
    "own content type": ("POST", "/direct_json", {"json": {}, "headers": {"content-type": "text/x"}}),
    "own json type": (
        "POST",
        "/direct_json",
        {"json": {}, "headers": {"Content-Type": "application/x+json"}},
    ),
    "cookies": ("POST", "/direct", {"cookies": {"a": "1", "b": "two words; and more", COOKIE: ID}}),
    "cookies through": ("POST", "/through", {"cookies": {"a": "1", COOKIE: ID}}),
    "cookie header": ("POST", "/direct", {"headers": {"Cookie": f"{COOKIE}={ID}; a=1"}}),
    "cookies and their header": ("POST", "/direct", {"cookies": {COOKIE: ID}, "headers": {"Cookie": "a=1"}}),
    "cookie header through": ("POST", "/through", {"headers": {"cookie": f"{COOKIE}={ID}"}}),
    "params": ("POST", "/direct", {"params": {"a": "1", "b": "x y&z", "c": 3}}),
    "params repeated": ("POST", "/through", {"params": {"a": ["1", "2"]}}),
    "query in the path": ("POST", "/direct?a=1&b=x%20y", {}),
    "query and params": ("POST", "/through?a=1", {"params": {"b": "2"}}),
    "query with letters": ("POST", "/through?name=größe", {}),
    "percent in the path": ("POST", "/any/a%20b%2Fc", {}),
    "space in the path": ("POST", "/any/a b/ü", {}),
    "dots in the path": ("POST", "/any/../direct", {}),
    "data bytes": ("POST", "/through", {"data": b"raw \xff"}),
    "data text": ("POST", "/any/x", {"data": "größe"}),
    "data as a form": ("POST", "/any/x", {"data": {"a": "1", "b": "x y"}}),
    "data bytearray": ("POST", "/through", {"data": bytearray(b"raw")}),
    "data memoryview": ("POST", "/through", {"data": memoryview(b"raw")}),
    "form with other values": ("POST", "/any/x", {"data": {"a": None, "b": [1, "x y"], "c": 2.5, "d": True}}),
    "made up": ("POST", "/made_up", {"json": {}}),
    "wrong method": ("GET", "/direct", {}),
}


@pytest.fixture(scope="module")
def both() -> Iterator[list[ServerClient]]:
    with served(HostedServer("it", mirror())) as url:
        yield [
            local_client(it=HostedServer("it", mirror())),
            ServerClient(global_config_dict=served_config("it", url)),
        ]


@pytest.mark.parametrize("name", CALLS)
def test_request_looks_the_same_to_the_server_on_both_transports(both: list[ServerClient], name: str) -> None:
    method, path, options = CALLS[name]

    async def run(client: ServerClient) -> tuple[int, Any]:
        response = await client.request("it", path, method, **options)
        seen = await response.json()
        if name.startswith("cookie"):
            assert seen["session"] == response.cookies[COOKIE].value == ID
        seen.pop("session", None)
        if not name.startswith(("own", "json")):
            seen.pop("content-type", None)
        return response.status, seen

    here, there = (asyncio.run(run(client)) for client in both)
    assert here == there


@pytest.mark.parametrize("data", [aiohttp.FormData({"a": "1"}), {"file": BytesIO(b"x")}, {"file": b"x"}])
def test_body_that_only_aiohttp_can_encode_is_refused_in_this_process(data: Any) -> None:
    client = local_client(it=HostedServer("it", mirror()))
    with pytest.raises(TypeError, match=r"POST it/direct: .* pass json="):
        asyncio.run(client.post("it", "/direct", data=data))


def test_model_is_serialized_with_the_fields_that_were_set() -> None:
    class Body(BaseModel):
        a: int = 1
        b: int = 2

    async def run() -> Any:
        client = local_client(it=HostedServer("it", mirror()))
        return await (await client.post("it", "/direct_json", json=Body(b=3))).json()

    assert orjson.loads(asyncio.run(run())["body"]) == {"b": 3}


def test_unknown_server_is_an_error_that_lists_the_known_ones() -> None:
    client = ServerClient(global_config_dict=TWO_SERVERS)
    with pytest.raises(ConfigError, match="no server is named 'tolls'") as caught:
        asyncio.run(client.post("tolls", "/x"))
    assert "no_port_yet, policy_model, tools" in str(caught.value)


def test_server_without_an_address_is_not_called_unknown() -> None:
    client = ServerClient(global_config_dict=TWO_SERVERS)
    with pytest.raises(ConfigError, match=r"no_port_yet.*port") as caught:
        asyncio.run(client.post("no_port_yet", "/x"))
    assert "no server is named" not in str(caught.value)


def test_missing_server_is_unreachable_by_name() -> None:
    config = served_config("it", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(
        ServerUnreachableError, match=r"it: no response from POST http://127\.0\.0\.1"
    ) as caught:
        asyncio.run(ServerClient(global_config_dict=config).post("it", "/x", json={}))
    assert caught.value.server == "it"


@pytest.mark.parametrize(
    "reply", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"], ids=["gone", "cut"]
)
def test_server_that_drops_the_connection_is_unreachable_and_not_retried(reply: bytes | None) -> None:
    async def run() -> int:
        async with serving(reply) as raw:
            client = ServerClient(global_config_dict=served_config("it", raw.url))
            with pytest.raises(ServerUnreachableError, match="it: "):
                await client.post("it", "/x", json={})
            return len(raw.requests)

    assert asyncio.run(run()) == 1


def never_responding() -> FastAPI:
    app = new_app()

    async def hang(body: dict[str, Any]) -> None:
        await asyncio.sleep(1)  # fifty times the deadline

    app.post("/hang")(hang)
    return app


DEADLINES: list[dict[str, Any]] = [
    {"timeout": 0.02},
    {"timeout": aiohttp.ClientTimeout(total=0.02)},
]


@pytest.mark.parametrize("deadline", DEADLINES, ids=["number", "aiohttp"])
def test_deadline_of_a_call_is_kept_on_both_transports(deadline: dict[str, Any]) -> None:
    client = local_client(it=HostedServer("it", never_responding()))
    with pytest.raises(ServerUnreachableError, match="it: "):
        asyncio.run(client.post("it", "/hang", json={}, **deadline))

    with served(HostedServer("it", never_responding())) as url:
        client = ServerClient(global_config_dict=served_config("it", url))
        with pytest.raises(ServerUnreachableError, match="it: "):
            asyncio.run(client.post("it", "/hang", json={}, **deadline))


def test_session_stays_with_the_worker_that_began_it() -> None:
    async def run() -> list[int]:
        async with (
            serving(raw_response(200)) as first,
            serving(raw_response(200)) as second,
            serving(raw_response(200)) as third,
        ):
            ports = [int(raw.url.rpartition(":")[2]) for raw in (first, second, third)]
            config = served_config("it", first.url, worker_ports=ports)
            client = ServerClient(global_config_dict=config)
            for _ in range(4):
                await client.post("it", "/x", cookies={COOKIE: f"2w{ID}"})
            for _ in range(6):
                await client.post("it", "/x", cookies={})
            return [len(raw.requests) for raw in (first, second, third)]

    assert asyncio.run(run()) == [2, 2, 6]


@pytest.mark.parametrize(
    ("session_id", "worker"),
    [(f"0w{ID}", 0), (f"1w{ID}", 1), (f"5w{ID}", 1), (ID, 3), ("", 3), ("1w", 3), (f"1w{ID}0", 3)],
)
def test_only_an_id_with_a_worker_in_it_chooses_the_worker(session_id: str, worker: int) -> None:
    address = ServerAddress(("a", "b", "c", "d"), "cookie", turns=count(3))
    assert address.url({"cookie": session_id}) == "abcd"[worker]


def test_session_cookies_of_different_servers_never_share_a_name() -> None:
    names = [session_cookie_name(name) for name in ("a b", "a_b", "a/b", "ab", "größe", "a.b", "a-b")]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in names)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8"),
        ("node7", "http://node7:8"),
        ("0.0.0.0", "http://127.0.0.1:8"),
        ("::", "http://[::1]:8"),
        ("::1", "http://[::1]:8"),
        ("fe80::2", "http://[fe80::2]:8"),
    ],
)
def test_url_of_a_server_works_for_every_listening_address(host: str, url: str) -> None:
    assert base_url(host, 8) == url
    assert get_server_url({"host": host, "port": 8}) == url
    assert get_server_url(BaseServerConfig(host=host, port=8)) == url


def test_server_class_accepts_a_mock_as_client() -> None:
    config = BaseResourcesServerConfig(host="", port=0, entrypoint="", name="x")
    server = SimpleResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
    assert isinstance(server.setup_webserver(), FastAPI)


def test_server_class_refuses_an_object_that_is_not_a_client() -> None:
    config = BaseResourcesServerConfig(host="", port=0, entrypoint="", name="x")
    with pytest.raises(ValueError, match="server_client"):
        SimpleResourcesServer(config=config, server_client="a client")


CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"
OPENAI = "responses_api_models/openai_model/configs/openai_model.yaml"
POLICY = {"policy_base_url": "http://127.0.0.1:1", "policy_api_key": "k", "policy_model_name": "m"}


def test_client_loaded_while_servers_are_open_talks_to_those() -> None:
    async def run() -> None:
        async with nemo_gym.open_servers([CALCULATOR, OPENAI], POLICY) as client:
            assert ServerClient.load_from_global_config() is client
            response = await client.post("calculator", "/calculator", json={"expression": "6*7"})
            assert response.ok
        with pytest.raises(HeadServerUnreachableError):
            ServerClient.load_from_global_config(BaseServerConfig(host="127.0.0.1", port=free_port()))

    asyncio.run(run())


def test_client_in_another_process_gets_the_configuration_from_the_head_server() -> None:
    async def run() -> ServerClient:
        address = BaseServerConfig(host="127.0.0.1", port=free_port())
        head = HeadServer(config=address, masked_config=TWO_SERVERS | {"text": "größe"}, statuses=list)
        async with serve_head(head):
            return await asyncio.to_thread(ServerClient.load_from_global_config, address)

    client = asyncio.run(run())
    assert client.global_config_dict["text"] == "größe"
    assert client.global_config_dict["tools"]["resources_servers"]["x"]["port"] == 1
    with pytest.raises(ConfigError, match="policy_model, tools"):
        asyncio.run(client.post("tolls", "/x"))


BILLION_LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}, *{before}]\n"
    for before, name in pairwise("abcdefghijklmnopqrstuvwxyz")
)
PAGES_OF_OTHERS = {
    "HTML": b"<html>hello</html>",
    "a list": b'"- just\\n- a list"',
    "a number": b"7",
    "an object": b'{"status": "ok"}',
    "not YAML": b'"a: [b"',
    "aliases": json.dumps(BILLION_LAUGHS).encode(),
    "other keys": b'"1: 2"',
    "a tag": b'"a: !!python/object:os.system x"',
    "a date": b'"a: 2024-05-06"',
    "deep JSON": b"[" * 100_000,
    "deep YAML": json.dumps("[" * 5000).encode(),
    "random bytes": b"\x00\xff\x16",
}


@pytest.mark.parametrize("page", PAGES_OF_OTHERS.values(), ids=PAGES_OF_OTHERS)
def test_page_of_another_server_is_one_clear_error(page: bytes) -> None:
    async def run() -> None:
        async with serving(raw_response(200, page)) as raw:
            head = BaseServerConfig(host="127.0.0.1", port=int(raw.url.rpartition(":")[2]))
            with pytest.raises(NotAHeadServerError, match=f"{re.escape(raw.url)}.* is not a head server"):
                await asyncio.to_thread(ServerClient.load_from_global_config, head)

    asyncio.run(run())


def test_head_servers_page_is_a_text_with_yaml_in_it() -> None:
    head = HeadServer(
        config=BaseServerConfig(host="127.0.0.1", port=1), masked_config={"a": {"b": [1, "ü"]}}, statuses=list
    )

    async def run() -> Any:
        client = local_client(head=HostedServer("head", head.setup_webserver()))
        return await (await client.get("head", "/global_config_dict_yaml")).json()

    assert yaml.safe_load(asyncio.run(run())) == {"a": {"b": [1, "ü"]}}


def test_new_sessions_rotate_over_all_workers() -> None:
    async def run() -> list[int]:
        async with serving(raw_response(200)) as first, serving(raw_response(200)) as second:
            ports = [int(raw.url.rpartition(":")[2]) for raw in (first, second)]
            config = served_config("it", first.url, worker_ports=ports)
            client = ServerClient(global_config_dict=config)
            for _ in range(10):
                await client.post("it", "/seed")
                await client.post("it", "/tool", cookies={COOKIE: f"0w{ID}"})
            return [sum(b"/seed" in request for request in raw.requests) for raw in (first, second)]

    assert asyncio.run(run()) == [5, 5]


def test_unknown_option_of_a_call_is_refused_on_both_transports() -> None:
    local = local_client(it=HostedServer("it", mirror()))
    over_http = ServerClient(global_config_dict=served_config("it", "http://127.0.0.1:1"))
    for client in (local, over_http):
        with pytest.raises(TypeError, match="proxy"):
            asyncio.run(client.post("it", "/direct", proxy="http://127.0.0.1"))


@pytest.mark.parametrize(
    ("head", "host", "expected"),
    [
        ("node-7", "0.0.0.0", "http://node-7:1"),
        ("node-7", "10.0.0.9", "http://10.0.0.9:1"),
        ("0.0.0.0", "0.0.0.0", "http://127.0.0.1:1"),
        ("127.0.0.1", "0.0.0.0", "http://127.0.0.1:1"),
    ],
)
def test_server_on_every_address_is_called_on_the_machine_of_its_head_server(
    head: str, host: str, expected: str
) -> None:
    values = {"tools": {"resources_servers": {"x": {"host": host, "port": 1}}}}
    client = ServerClient(BaseServerConfig(host=head, port=2), values)
    assert client._find_address("tools").urls == (expected,)
