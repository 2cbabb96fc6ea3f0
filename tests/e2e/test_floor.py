"""Both sides of the rollout benchmark do the same work."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.endpoint_process import FINAL, TOOL_CALL, request_size
from bench.rollouts import Play, embedded_player, endpoint_process, first_row, floor_player, play_all
from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.players import play

PLAYERS = [floor_player, embedded_player]


def played(player: Any, base_url: str) -> Any:
    async def run() -> bytes:
        async with player(base_url) as play_row:
            line: bytes = await play_row(first_row())
            return line

    return orjson.loads(asyncio.run(run()))


def test_floor_and_servers_send_the_same_requests_and_write_the_same_line() -> None:
    requests, lines = [], []
    for player in PLAYERS:
        with ScriptedEndpoint(play) as endpoint:
            line = played(player, endpoint.base_url)
            line["response"].pop("id")  # counted by the endpoint
            lines.append(line)
            requests.append(endpoint.requests)
    assert len(requests[0]) == 2
    assert requests[0] == requests[1]
    assert lines[0] == lines[1]
    assert lines[0]["reward"] == 1.0


@pytest.mark.parametrize("delay_ms", [0.0, 1.0])
def test_endpoint_process_supports_tool_call_and_final_message(delay_ms: float) -> None:
    with endpoint_process(delay_ms) as endpoint:
        line = played(floor_player, endpoint.base_url)
    types = [item["type"] for item in line["response"]["output"]]
    assert types == ["function_call", "function_call_output", "message"]


def test_endpoint_process_accepts_split_requests_and_several_per_connection() -> None:
    first = b"POST / HTTP/1.1\r\nContent-Length: 3\r\nX: y\r\n\r\nabc"
    second = b"POST / HTTP/1.1\r\ncontent-length: 20\r\n\r\nfunction_call_output"
    with endpoint_process() as endpoint:
        port = int(endpoint.base_url.removesuffix("/v1").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in (first[:20], first[20:] + second[:30], second[30:]):
                connection.sendall(piece)
            expected = TOOL_CALL + FINAL
            with connection.makefile("rb") as responses:
                assert responses.read(len(expected)) == expected


@pytest.mark.parametrize(
    ("received", "size"),
    [
        (b"", None),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n", None),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", 41),
        (b"GET / HTTP/1.1\r\n\r\n", 18),
    ],
)
def test_size_of_a_request_is_known_with_its_head(received: bytes, size: int | None) -> None:
    assert request_size(received) == size


def test_every_row_is_played_once_within_the_concurrency_limit(tmp_path: Path) -> None:
    running, most = 0, 0

    async def echo(row: bytes) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return row

    async def run(play_row: Play) -> None:
        rows = [b"%d" % number for number in range(20)]
        await play_all(play_row, iter(rows), file, concurrency=3)

    with (tmp_path / "rows").open("wb") as file:
        asyncio.run(run(echo))
    lines = (tmp_path / "rows").read_bytes().split()
    assert sorted(map(int, lines)) == list(range(20))
    assert most == 3
