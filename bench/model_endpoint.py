"""An endpoint for both APIs with prepared responses: `python -m bench.model_endpoint` prints its port.

`/v1` returns about 1.5 KB, `/large` a generation of 65,536 tokens with their ids. The path selects the
response; the request body is not parsed.
"""

import asyncio
import random
import socket
from typing import Any, cast

import orjson
import uvloop

from bench.endpoint_process import request_size
from bench.wire_models import RESPONSE

GENERATED = 65_536
CHAT: dict[str, Any] = {
    "id": "chatcmpl-68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b",
    "object": "chat.completion",
    "created": 1756315696,
    "model": "Qwen/Qwen3-8B",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": RESPONSE["output"][0]["content"][0]["text"],
                "tool_calls": [
                    {
                        "id": "call_hQ1fZpYw0D7sX2r",
                        "type": "function",
                        "function": {
                            "name": "get_forecast",
                            "arguments": '{"city": "Paris", "unit": "celsius", "days": 1}',
                        },
                    }
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 81, "completion_tokens": 135, "total_tokens": 216},
    "system_fingerprint": None,
}


def tokens() -> dict[str, Any]:
    """The token fields of a long generation."""
    numbers = random.Random(1)
    return {
        "prompt_token_ids": [numbers.randrange(150_000) for _ in range(64)],
        "generation_token_ids": [numbers.randrange(150_000) for _ in range(GENERATED)],
        "generation_log_probs": [-numbers.expovariate(1.0) for _ in range(GENERATED)],
    }


def large_response() -> dict[str, Any]:
    text = {"type": "output_text", "text": "word " * GENERATED, "annotations": []}
    message = {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed"}
    return {**RESPONSE, "output": [{**message, "content": [text], **tokens()}]}


def large_chat() -> dict[str, Any]:
    message = {"role": "assistant", "content": "word " * GENERATED, **tokens()}
    return {**CHAT, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def http_response(data: dict[str, Any]) -> bytes:
    """The bytes of an HTTP response."""
    body = orjson.dumps(data)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def prepared_responses() -> dict[bytes, bytes]:
    """By path."""
    return {
        b"/v1/responses": http_response(RESPONSE),
        b"/v1/chat/completions": http_response(CHAT),
        b"/large/responses": http_response(large_response()),
        b"/large/chat/completions": http_response(large_chat()),
    }


class Connection(asyncio.Protocol):
    """One client. The response is sent as soon as the request is complete."""

    def __init__(self, prepared: dict[bytes, bytes]) -> None:
        self._prepared = prepared
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (size := request_size(self._received)) is not None and size <= len(self._received):
            path = self._received[: self._received.index(b"\r\n")].split(b" ")[1]
            self._received = self._received[size:]
            assert self._transport is not None
            self._transport.write(self._prepared[path])


async def serve() -> None:
    """Serve until the process is stopped."""
    prepared = prepared_responses()
    listener = socket.create_server(("127.0.0.1", 0))
    server = await asyncio.get_running_loop().create_server(lambda: Connection(prepared), sock=listener)
    print(listener.getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
