"""The client every component talks to others with, and its two ways there.

Where the named server lives decides: a server hosted in this process is called directly, any other over
HTTP. The caller's code and what it gets back are the same.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode

import aiohttp

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.config_types import BaseServerConfig, ConfigError
from nemo_gym.http import (
    ClientResponse,
    Cookies,
    Headers,
    ServerUnreachableError,
    fetch_text,
    request,
)
from nemo_gym.types import SERVER_KINDS

DEFAULT_HEAD_SERVER_PORT = 11000

_NOT_IN_A_COOKIE_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_WORKER_OF_SESSION = re.compile(r"(\d+)w[0-9a-f]{32}")


class Call(NamedTuple):
    """One request to a server of this process."""

    method: str
    path: str
    body: bytes
    is_json: bool
    cookies: Cookies
    query: str = ""
    headers: Headers = ()
    """Those the caller gave; content type and cookies go without saying."""


class LocalServer(Protocol):
    """A server hosted in this process."""

    async def call(self, call: Call) -> ClientResponse: ...


def session_cookie_name(server_name: str) -> str:
    """The cookie that carries a server's session: one for each instance, so that one jar serves a rollout."""
    plain = _NOT_IN_A_COOKIE_NAME.sub("_", server_name)
    if plain != server_name:
        plain = f"{plain}.{sha256(server_name.encode()).hexdigest()[:8]}"
    return f"ng_session_{plain}"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens: one URL for each of its workers."""

    urls: tuple[str, ...]
    cookie_name: str

    def url(self, cookies: Cookies, turn: int) -> str:
        """The worker that holds the session; whoever's turn it is where there is none yet."""
        if len(self.urls) == 1:
            return self.urls[0]
        morsel = cookies.get(self.cookie_name)
        session_id = morsel if isinstance(morsel, str) else morsel.value if morsel else ""
        held = _WORKER_OF_SESSION.fullmatch(session_id)
        return self.urls[(int(held[1]) if held else turn) % len(self.urls)]


def get_server_url(server_config: Mapping[str, Any] | BaseServerConfig) -> str:
    """The address of a server's block of the configuration."""
    if isinstance(server_config, BaseServerConfig):
        host, port = server_config.host, server_config.port
    else:
        host, port = server_config["host"], server_config["port"]
    return base_url(host, port)


def base_url(host: str, port: int) -> str:
    """Where to reach a server that listens on `host`: the wildcard address is not one to call."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{host}:{port}"


class ServerClient:
    """Calls servers by their instance name."""

    def __init__(
        self,
        head_server_config: BaseServerConfig | None = None,
        global_config_dict: Mapping[str, Any] | None = None,
        *,
        local_servers: Mapping[str, LocalServer] | None = None,
    ) -> None:
        self.head_server_config = head_server_config
        self.global_config_dict = global_config_dict if global_config_dict is not None else {}
        self._local_servers = local_servers if local_servers is not None else {}
        self._addresses: dict[str, ServerAddress] = {}
        self._turn = count()

    @classmethod
    def load_from_global_config(cls, head_server_config: BaseServerConfig | None = None) -> "ServerClient":
        """The client of the servers opened in this context, or of those a running head server knows."""
        opened = current_client.get()
        if head_server_config is None and opened is not None:
            return opened
        head = head_server_config or cls.load_head_server_config()
        import yaml
        from omegaconf import DictConfig

        page = fetch_text(f"{base_url(head.host, head.port)}/global_config_dict_yaml")
        return cls(head, DictConfig(yaml.safe_load(decode_json(page))))

    @classmethod
    def load_head_server_config(cls) -> BaseServerConfig:
        """The head server's address: from the configuration that is set, else the usual one."""
        from nemo_gym.config.current import maybe_get_global_config_dict

        values: Mapping[str, Any] = maybe_get_global_config_dict() or {}
        return BaseServerConfig.model_validate(
            {"host": "127.0.0.1", "port": DEFAULT_HEAD_SERVER_PORT, **(values.get("head_server") or {})}
        )

    async def get(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name, url_path, "GET", **kwargs)

    async def post(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        return await self.request(server_name, url_path, "POST", **kwargs)

    async def request(self, server_name: str, url_path: str, method: str, **kwargs: Any) -> ClientResponse:
        """One call. Error statuses are answers; no answer at all is a ServerUnreachableError."""
        server = self._local_servers.get(server_name)
        if server is not None:
            return await server.call(_local_call(method, url_path, **kwargs))
        address = self._address(server_name)
        url = address.url(kwargs.get("cookies") or {}, next(self._turn)) + url_path
        try:
            return await request(method, url, **kwargs)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ServerUnreachableError(server_name, f"no answer from {method} {url}: {reason}") from error

    def _address(self, server_name: str) -> ServerAddress:
        address = self._addresses.get(server_name)
        if address is None:
            address = self._addresses[server_name] = self._find_address(server_name)
        return address

    def _find_address(self, server_name: str) -> ServerAddress:
        block = server_block(self.global_config_dict, server_name)
        if block is None or not block.get("port"):
            known = sorted({*self._local_servers, *server_names(self.global_config_dict)})
            raise ConfigError(f"no server is named {server_name!r}; there are: {', '.join(known) or 'none'}")
        ports = block.get("worker_ports") or [block["port"]]
        urls = tuple(base_url(block.get("host", "127.0.0.1"), port) for port in ports)
        return ServerAddress(urls, session_cookie_name(server_name))


current_client: ContextVar[ServerClient | None] = ContextVar("current_client", default=None)
"""The client of the servers that are open around the running code."""


def server_block(values: Mapping[str, Any], server_name: str) -> Mapping[str, Any] | None:
    """The implementation block of one instance."""
    instance = values.get(server_name)
    for kind in SERVER_KINDS:
        if isinstance(instance, Mapping) and isinstance(instance.get(kind), Mapping):
            block = next(iter(instance[kind].values()), None)
            return block if isinstance(block, Mapping) else None
    return None


def server_names(values: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in values if server_block(values, str(name)) is not None]


def _local_call(
    method: str,
    path: str,
    *,
    json: Any = None,
    data: bytes | str | None = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    cookies: Cookies | None = None,
    timeout_s: float | None = None,
) -> Call:
    """What the keyword arguments of `post` say, as a call. A deadline is the caller's to keep here."""
    query = urlencode(params, doseq=True) if params else ""
    if "?" in path:
        path, _, own_query = path.partition("?")
        query = f"{own_query}&{query}" if query else own_query
    sent_headers = tuple(headers.items()) if headers else ()
    if json is not None:
        return Call(method, path, encode_json(json), True, cookies or {}, query, sent_headers)
    body = data.encode() if isinstance(data, str) else data or b""
    return Call(method, path, body, False, cookies or {}, query, sent_headers)
