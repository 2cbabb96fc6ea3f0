import asyncio
import subprocess
import sys

import aiohttp
import pytest

from nemo_gym.failures import Boundary, FailureKind, kind_of_exception
from nemo_gym.http import (
    Call,
    GlobalAIOHTTPAsyncClientConfig,
    get_global_aiohttp_client,
    http_transport,
    parse_call,
    request,
)
from nemo_gym.http.aiohttp_client import AiohttpTransport
from nemo_gym.http.plain_client import PlainTransport
from nemo_gym.http.transport_choice import client_settings
from tests.gym.http.raw_server import raw_response, serving
from tests.support.commands import ROOT


async def call() -> aiohttp.ClientSession:
    """Make one call over HTTP and return the client that was used."""
    async with serving(raw_response(200)) as server:
        assert (await request("POST", server.url, json={})).ok
    return get_global_aiohttp_client()


def test_client_is_shared_within_an_event_loop() -> None:
    async def run() -> bool:
        first, second = await asyncio.gather(call(), call())
        return first is second is get_global_aiohttp_client()

    assert asyncio.run(run())


def test_client_is_closed_when_its_event_loop_ends() -> None:
    first = asyncio.run(call())
    assert first.closed


def test_each_event_loop_has_its_own_client() -> None:
    first, second = asyncio.run(call()), asyncio.run(call())
    assert first is not second
    assert first.closed and second.closed


def test_client_closed_by_other_code_is_replaced() -> None:
    async def run() -> None:
        await (await call()).close()
        assert not (await call()).closed

    asyncio.run(run())


def test_client_keeps_no_cookies() -> None:
    async def run() -> list[bytes]:
        async with serving(raw_response(200, b"{}", "Set-Cookie: a=1; Path=/")) as server:
            for _ in range(2):
                await request("POST", server.url, json={})
            return server.requests

    assert not [sent for sent in asyncio.run(run()) if b"cookie" in sent.lower()]


SCRIPT = """
import asyncio, gc
from nemo_gym.server_utils import (
    GlobalAIOHTTPAsyncClientConfig, get_global_aiohttp_client, is_global_aiohttp_client_setup,
    request, set_global_aiohttp_client,
)

async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    await writer.drain()
    writer.close()

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is not worth a warning
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert (await request("GET", url)).ok
    if not is_global_aiohttp_client_setup():
        set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig(global_aiohttp_connector_limit=7))
        assert get_global_aiohttp_client().connector.limit == 7
        assert is_global_aiohttp_client_setup()
    assert get_global_aiohttp_client().connector.limit == 7
    assert (await request("GET", url)).ok
    server.close()
    await server.wait_closed()

asyncio.run(main())
asyncio.run(main())
gc.collect()
"""


SIZES_OF_THE_SERVERS = """
import asyncio
from nemo_gym.client import ServerClient, current_client
from nemo_gym.http import GlobalAIOHTTPAsyncClientConfig, get_global_aiohttp_client
from nemo_gym.http.transport_choice import set_pool_size
from nemo_gym.rollout_collection import RolloutCollectionHelper

current_client.set(ServerClient(global_config_dict={"global_aiohttp_connector_limit": 7}))
RolloutCollectionHelper().setup_server_client()

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is not worth a warning
    assert get_global_aiohttp_client().connector.limit == 7
    await asyncio.to_thread(set_pool_size, GlobalAIOHTTPAsyncClientConfig(global_aiohttp_connector_limit=8))
    assert get_global_aiohttp_client().connector.limit == 8

asyncio.run(main())
"""


@pytest.mark.parametrize("script", [SCRIPT, SIZES_OF_THE_SERVERS], ids=["set by a script", "of the servers"])
def test_pool_has_the_size_that_was_set_and_is_closed_without_a_warning(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_pool_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="global_aiohttp_connector_limit"):
        GlobalAIOHTTPAsyncClientConfig.model_validate({"global_aiohttp_connector_limit": "many"})


def test_nothing_is_kept_of_closed_event_loops() -> None:
    from nemo_gym.http.transport_choice import _shared

    before = set(_shared._by_loop)  # entries of event loops that other tests have not closed
    for _ in range(5):
        asyncio.run(call())
    assert set(_shared._by_loop) <= before


PLAIN = parse_call("POST", "http://127.0.0.1:1/x", json={})


async def transport_for(call: Call) -> type:
    return type(http_transport(call))


@pytest.mark.fast_path
def test_plain_client_sends_what_it_can_and_aiohttp_the_rest() -> None:
    over_tls = parse_call("POST", "https://127.0.0.1:1/x", json={})
    assert asyncio.run(transport_for(PLAIN)) is PlainTransport
    assert asyncio.run(transport_for(over_tls)) is AiohttpTransport


@pytest.mark.fast_path
def test_plain_client_that_is_switched_off_sends_nothing() -> None:
    with client_settings({"plain_http_client": False}):
        assert asyncio.run(transport_for(PLAIN)) is AiohttpTransport
    assert asyncio.run(transport_for(PLAIN)) is PlainTransport


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize(
    "broken",
    [None, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", b"SMTP ready\r\n\r\n"],
    ids=["closed", "cut", "not HTTP"],
)
def test_broken_response_is_the_same_kind_of_failure_from_both_clients(
    broken: bytes | None, is_plain: bool
) -> None:
    async def run() -> None:
        async with serving(broken) as server:
            with pytest.raises((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)) as raised:
                await request("POST", server.url, json={})
        assert kind_of_exception(raised.value, Boundary.SERVER_CODE) == FailureKind.INFRASTRUCTURE

    with client_settings({"plain_http_client": is_plain}):
        asyncio.run(run())
