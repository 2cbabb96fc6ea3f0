"""The link over a socket pair: what is sent arrives, also if the sender ends right after."""

import asyncio
import pickle
import socket
from collections.abc import Callable

import pytest
import uvloop

from nemo_gym.rollout_collection.execution.socket_link import Frames

MESSAGE = bytes(60_000)
"""More than the socket below holds, less than what asyncio buffers before `drain` waits."""


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_flush_waits_until_the_last_byte_has_been_sent(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    async def send_and_read() -> bytes:
        frames = await Frames.over(here)
        frames.send(MESSAGE)
        flushing = asyncio.ensure_future(frames.flush())
        await asyncio.wait({flushing}, timeout=0.05)
        assert not flushing.done(), "nothing has been read yet"
        reader, writer = await asyncio.open_connection(sock=there)
        length = int.from_bytes(await reader.readexactly(4), "big")
        data = await reader.readexactly(length)
        await flushing
        frames.close()
        writer.close()
        await writer.wait_closed()
        return data

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert pickle.loads(runner.run(send_and_read())) == MESSAGE
