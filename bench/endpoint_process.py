"""A model endpoint that uses very little CPU: `python -m bench.endpoint_process [delay_ms]` prints its port.

It implements only the parts of HTTP/1.1 that a client with keep-alive connections needs (Content-Length, one
request at a time). It has two prepared responses of the Responses API: the final message if the request
contains the output of a tool, otherwise a call of `get_weather`. The request is searched, not parsed.
"""

import asyncio
import socket
import sys
from typing import cast

import orjson
import uvloop

from nemo_gym.launch.limits import raise_file_limit
from scripts.scripted_endpoint import Item, function_call, message

BACKLOG = 8192
"""Connections that may wait to be accepted; a collector may open this many at once."""
_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


def http_response(output: list[Item]) -> bytes:
    """The bytes of an HTTP response with these output items."""
    response = {
        "id": "resp_0",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
    }
    body = orjson.dumps(response)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


TOOL_CALL = http_response([function_call("get_weather", city="San Francisco")])
FINAL = http_response([message("It is cold and windy in San Francisco today.")])


class Connection(asyncio.Protocol):
    """One client. The response is sent `delay_s` after the request is complete."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        while (size := request_size(self._received)) is not None and size <= len(self._received):
            request, self._received = self._received[:size], self._received[size:]
            response = FINAL if b"function_call_output" in request else TOOL_CALL
            if self._delay_s:
                self._loop.call_later(self._delay_s, self._send, response)
            else:
                self._send(response)

    def _send(self, response: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(response)


def request_size(received: bytes) -> int | None:
    """Size in bytes of the first request in `received`; None while its head is incomplete."""
    end = received.find(_END_OF_HEAD)
    if end < 0:
        return None
    head = received[:end].lower()
    start = head.find(_LENGTH)
    length = int(head[start + len(_LENGTH) :].partition(b"\r")[0]) if start >= 0 else 0
    return end + len(_END_OF_HEAD) + length


async def serve(delay_s: float) -> None:
    """Serve until the process is stopped."""
    raise_file_limit()
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    server = await loop.create_server(lambda: Connection(loop, delay_s), sock=listener, backlog=BACKLOG)
    print(listener.getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0.0))
