"""A server that speaks HTTP only as well as a test wants it to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Where it listens, and how many requests have reached it."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        """Head and body of each, as far as they were read."""

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-le")
            ),
            0,
        )
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request


def answer(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(*script: bytes | None, port: int = 0) -> AsyncIterator[RawServer]:
    """Answers the first request with the first of `script` and so on, the last one ever after.

    None: the connection is closed without an answer. A connection stays open after a whole answer.
    """
    raw = RawServer()
    connections: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[writer] = asyncio.current_task()
        try:
            while True:
                await raw.read_request(reader)
                reply = script[min(len(raw.requests), len(script)) - 1]
                if reply is None:
                    return
                writer.write(reply)
                await writer.drain()
                if not _is_whole(reply):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield raw
        for writer in connections:
            writer.close()
        await asyncio.gather(*filter(None, connections.values()), return_exceptions=True)


def _is_whole(reply: bytes) -> bool:
    head, _, body = reply.partition(b"\r\n\r\n")
    return f"Content-Length: {len(body)}".encode() in head
