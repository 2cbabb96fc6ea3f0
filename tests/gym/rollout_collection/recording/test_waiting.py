"""Limits and activities, requested from served processes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from nemo_gym.rollout_collection.recording.waiting import ServedReports, with_server_activities
from tests.support.commands import free_port

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def responding_with(page: str) -> Handle:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(page)}\r\nconnection: close\r\n\r\n"
        writer.write((head + page).encode())
        await writer.drain()
        writer.close()

    return handle


async def no_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the caller closes the connection
    writer.close()


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[str]:
    """Run a server; yields its address."""
    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_limits_are_summed_over_the_servers_that_respond_in_time() -> None:
    async def run() -> dict[str, int]:
        async with (
            serving(responding_with('{"rollouts": [], "limits": {"host:1": 16, "host:2": 3}}')) as one,
            serving(responding_with('{"rollouts": [], "limits": {"host:1": 8}}')) as other,
            serving(responding_with("no JSON")) as strange,
            serving(responding_with('{"detail": "Not Found"}')) as old,
            serving(no_response) as silent,
        ):
            limits = ServedReports(
                [one, silent, strange, f"http://127.0.0.1:{free_port()}", old, other], "run", timeout_s=3.0
            )
            await limits.ask()
            return limits.limits

    assert asyncio.run(run()) == {"host:1": 24, "host:2": 3}


def test_limits_of_a_stopped_server_are_removed() -> None:
    async def run() -> None:
        async with serving(responding_with('{"limits": {"host:1": 16}}')) as url:
            limits = ServedReports([url], "run", timeout_s=30)
            assert limits.limits == {}
            await limits.ask()
            assert limits.limits == {"host:1": 16}
        await limits.ask()
        assert limits.limits == {}

    asyncio.run(run())


def test_status_shows_what_a_server_reports_about_a_rollout() -> None:
    async def run() -> list[str]:
        page = '{"rollouts": [{"rollout": "0:0", "waits_for": "3 s in model call 2", "error": ""}]}'
        status = {"oldest": [{"rollout": name, "waits_for": "the agent"} for name in ("0:0", "1:0")]}
        async with serving(responding_with(page)) as one, serving(responding_with("[1, 2]")) as strange:
            found = await asyncio.to_thread(with_server_activities, status, [strange, one])
            return [rollout["waits_for"] for rollout in found["oldest"]]

    assert asyncio.run(run()) == ["3 s in model call 2", "the agent"]
