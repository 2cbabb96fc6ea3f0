"""An HTTP server that sends exactly the bytes of a script, valid or not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """The URL of the server and the requests it has received."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        """Head and body of each request."""

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


def raw_response(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(*script: bytes | None, port: int = 0) -> AsyncIterator[RawServer]:
    """Respond to each request with the next item of `script`; the last item repeats.

    None closes the connection without a response. The connection stays open after a complete response.
    """
    raw = RawServer()
    connections: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[writer] = asyncio.current_task()
        try:
            while True:
                await raw.read_request(reader)
                response = script[min(len(raw.requests), len(script)) - 1]
                if response is None:
                    return
                writer.write(response)
                await writer.drain()
                if not _is_complete(response):
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


def _is_complete(response: bytes) -> bool:
    head, _, body = response.partition(b"\r\n\r\n")
    return f"Content-Length: {len(body)}".encode() in head


@asynccontextmanager
async def sending(pieces: Callable[[], Iterable[bytes]], pace_s: float = 0.0) -> AsyncIterator[str]:
    """A server that sends the pieces to each request, then closes the connection; yields its URL."""
    running: set[asyncio.Task[None] | None] = set()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pace_s)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, running))
