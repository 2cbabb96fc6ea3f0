import asyncio
import re
from itertools import chain, repeat

import pytest

from nemo_gym.errors import HeadServerUnreachableError, NotAHeadServerError
from nemo_gym.http import fetch_text
from tests.gym.http.raw_server import raw_response, sending, serving
from tests.support.commands import free_port


def fetch_from(reply: bytes | None, **options: float) -> str:
    async def run() -> str:
        async with serving(reply) as server:
            return await asyncio.to_thread(fetch_text, server.url, **options)

    return asyncio.run(run())


def test_text_of_a_page_is_returned() -> None:
    assert fetch_from(raw_response(200, "grüße".encode())) == "grüße"


def test_unreachable_head_server_is_one_error_with_address_and_hint() -> None:
    url = f"http://127.0.0.1:{free_port()}/global_config_dict_yaml"
    with pytest.raises(HeadServerUnreachableError, match=re.escape(url)) as caught:
        fetch_text(url)
    assert "refused" in str(caught.value)
    assert "ng_run" in str(caught.value)
    assert "head_server.port" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "reply",
    [
        None,
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        raw_response(404),
        raw_response(200, b"\xff\xfe"),
        raw_response(200)[:-1],
    ],
    ids=["closes", "no http", "not found", "no text", "cut off"],
)
def test_any_other_program_on_the_port_gives_the_same_error(reply: bytes | None) -> None:
    with pytest.raises(HeadServerUnreachableError, match=r"http://127\.0\.0\.1:\d+"):
        fetch_from(reply)


def test_server_that_never_responds_times_out() -> None:
    async def run() -> None:
        release = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await release.wait()
            writer.close()

        async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(HeadServerUnreachableError, match="timed out"):
                await asyncio.to_thread(fetch_text, url, timeout_s=0.05)
            release.set()

    asyncio.run(run())


def test_proxy_settings_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert fetch_from(raw_response(200, b"direct")) == "direct"


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["head", "body"]
)
def test_server_that_drips_bytes_is_given_up_at_the_deadline(start: bytes) -> None:
    async def run() -> None:
        async with sending(lambda: chain([start], repeat(b"x")), pace_s=0.005) as url:
            with pytest.raises(HeadServerUnreachableError, match=r"no complete response within 0\.2 s"):
                await asyncio.to_thread(fetch_text, url, timeout_s=0.2)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_page_that_is_too_large_is_not_read() -> None:
    async def run() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"
        async with sending(lambda: [head]) as url:
            with pytest.raises(NotAHeadServerError, match="exceeds 16 MB"):
                await asyncio.to_thread(fetch_text, url)

    asyncio.run(run())
