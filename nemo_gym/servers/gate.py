"""The gate of an HTTP server: refuses requests that must not reach its application.

A page of another site that a browser shows can send requests to this machine under a name of its own (DNS
rebinding), so the Host header must name this server. A server that listens beyond this machine needs a token.
"""

import hmac
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.codec import encode_json
from nemo_gym.config import GymConfig
from nemo_gym.errors import HostingError
from nemo_gym.failures import FailureKind
from nemo_gym.http import FAILURE_KIND_HEADER
from nemo_gym.http.access_token import ACCESS_HEADER, HOW_TO_PASS, WILDCARDS, is_loopback
from nemo_gym.http.size_limits import SizeLimits, request_too_large
from nemo_gym.servers.asgi import send_reply

_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_TOKEN_HEADER = ACCESS_HEADER.encode()
_MOST_ACCEPTED = 256


@dataclass(frozen=True)
class Access:
    """Who may send requests to a server."""

    hosts: frozenset[str] = _LOCAL_NAMES
    """The names under which it is called, in lower case."""
    token: str | None = None
    """Every request must have it; None for a server that only this machine reaches."""
    query_parameter: str | None = None
    """A parameter that may have the token too, for pages."""

    @classmethod
    def to(cls, host: str, config: GymConfig) -> "Access":
        """The access to a server of this configuration that listens on `host`."""
        token = config.settings.access_token
        if token is None and not is_loopback(host):
            raise HostingError(
                f"a server on {host} can be reached from other machines and needs an access token; set "
                "access_token in env.yaml"
            )
        return cls.to_host(host, config.settings.allowed_hosts, token)

    @classmethod
    def to_host(cls, host: str, allowed: Collection[str] = (), token: str | None = None) -> "Access":
        names = {host, *allowed}
        if host in WILDCARDS:
            names.add(socket.gethostname())
        hosts = frozenset(_plain_host(name) for name in names) | _LOCAL_NAMES
        return cls(hosts, None if is_loopback(host) else token)


class Gate:
    """Wraps the application of a server."""

    def __init__(self, app: ASGIApp, access: Access, limits: SizeLimits = SizeLimits()) -> None:  # noqa: B008  # immutable
        self._app = app
        self._access = access
        self._limits = limits
        self._token = None if access.token is None else access.token.encode()
        self._accepted: set[bytes] = set()
        """Values of the Host header that were accepted before."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        host, tokens, length, is_chunked = b"", [], b"", False
        for name, value in scope["headers"]:
            if name == b"host":
                host = value if not host else b"?"  # two are refused
            elif name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                is_chunked = True
            elif name == _TOKEN_HEADER:
                tokens.append(value)
        if host not in self._accepted and not self._accepts(host, scope):
            await _refuse(scope, send, 421, self._wrong_host(host))
        elif self._token is not None and not self._is_permitted(scope, tokens):
            await _refuse(scope, send, 401, f"this server listens beyond its machine: {HOW_TO_PASS}")
        elif length and int(length) > self._limits.request_to(scope["path"]):
            await _refuse(scope, send, 413, request_too_large(scope["path"], self._limits))
        elif is_chunked and scope["type"] == "http":
            await self._run_counting(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _accepts(self, host: bytes, scope: Scope) -> bool:
        name = _plain_host(host.decode("latin-1"))
        here = (scope.get("server") or ("",))[0]  # the address that the caller has connected to
        if not name or (name not in self._access.hosts and name != here):
            return False
        if len(self._accepted) < _MOST_ACCEPTED:
            self._accepted.add(host)
        return True

    def _wrong_host(self, host: bytes) -> str:
        return (
            f"the Host header {host[:200].decode('latin-1')!r} does not name this server; it is called as "
            f"{', '.join(sorted(self._access.hosts))}; add other names with +allowed_hosts=[<name>]"
        )

    def _is_permitted(self, scope: Scope, tokens: list[bytes]) -> bool:
        assert self._token is not None
        if self._access.query_parameter is not None:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            tokens = [*tokens, *(text.encode() for text in query.get(self._access.query_parameter, ()))]
        return any(hmac.compare_digest(token, self._token) for token in tokens)

    async def _run_counting(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for a request whose length is not known before its end."""
        size, limit, has_started = 0, self._limits.request_to(scope["path"]), False

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise _TooLarge(413, request_too_large(scope["path"], self._limits))
            return message

        async def send_noted(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive_counted, send_noted)
        except _TooLarge as error:
            if not has_started:
                await _refuse(scope, send, 413, error.detail)


class _TooLarge(HTTPException):
    """An application handles it as one of its own."""


async def _refuse(scope: Scope, send: Send, status: int, message: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    kind = FailureKind.DATA if status == 413 else FailureKind.CONFIGURATION
    headers = [("content-type", "application/json"), (FAILURE_KIND_HEADER, kind.value)]
    await send_reply(send, (status, headers, encode_json({"detail": message})))


def _plain_host(value: str) -> str:
    """The host in a Host header or a setting, without port, brackets and final dot, in lower case.

    Empty if what follows the host is not a port.
    """
    value = value.strip().lower()
    if value.startswith("["):
        name, _, port = value[1:].partition("]")
    else:
        name, _, port = (value, "", "") if value.count(":") > 1 else value.partition(":")
    port = port.removeprefix(":")
    return "" if port and not port.isdigit() else name.removesuffix(".")
