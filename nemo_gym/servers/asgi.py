"""ASGI without a server: `scope`, `receive` and `send` of a request within this process."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.http import Call, cookie_header

Reply = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers without the content length, body. Status 0: nothing (more) to send."""


SESSION_HEADERS_KEY = "nemo_gym.session_headers"
"""In the scope of a request with a session: returns the headers that its response has for sessions."""


_HOST = (b"host", b"127.0.0.1")
_JSON = (b"content-type", b"application/json")


class Collector:
    """Collects the messages that an ASGI application sends, or passes them on."""

    def __init__(self, pass_on: Send | None = None) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body: list[bytes] = []
        self.whole = asyncio.Event()
        self._pass_on = pass_on

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
            ]
        elif self._pass_on is None:
            self.body.append(message.get("body", b""))
            if not message.get("more_body"):
                self.whole.set()
        if self._pass_on is not None:
            await self._pass_on(message)

    def reply(self) -> Reply:
        """The response; empty, with status 0, if it is not complete."""
        if not self.whole.is_set():
            return 0, [], b""
        headers = [pair for pair in self.headers if pair[0].lower() != "content-length"]
        return self.status, headers, b"".join(self.body)


def adding_headers(send: Send, headers: Callable[[], Iterable[tuple[str, str]]]) -> Send:
    """A `send` that adds headers when the response starts. The response object is not changed."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            for name, value in headers():
                MutableHeaders(scope=message).append(name, value)
        await send(message)

    return send_with_header


async def send_reply(send: Send, reply: Reply) -> None:
    status, headers, body = reply
    if not status:
        return
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if status not in (204, 304):
        raw.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def cookies_of(scope: Scope) -> str:
    """All cookies of a request as one header."""
    return b"; ".join([value for name, value in scope["headers"] if name == b"cookie"]).decode("latin-1")


def is_json(scope: Scope) -> bool:
    return any(name == b"content-type" and value == b"application/json" for name, value in scope["headers"])


def local_scope(call: Call, app: ASGIApp, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The scope of a call, like the one uvicorn creates."""
    headers = [_HOST]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in call.headers]
    if call.is_json:
        headers.append(_JSON)
    if call.cookies:
        headers.append((b"cookie", cookie_header(call.cookies).encode("latin-1")))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": unquote(call.path) if "%" in call.path else call.path,
        "raw_path": call.path.encode(),
        "root_path": "",
        "query_string": call.query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": dict(state or ()),
        "app": app,
    }


def receive_body(body: bytes, then: Receive | None = None) -> Receive:
    """A `receive` for a request whose body has been read; later messages come from `then`."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        if then is not None:
            return await then()
        # A caller in this process never disconnects. A task that waits for that is cancelled in the end.
        return await asyncio.Event().wait() and {"type": "http.disconnect"}

    return receive


async def read_body(receive: Receive) -> bytes | None:
    """The whole body; None if the caller disconnects before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts) if len(parts) > 1 else parts[0]
