"""The client every component talks to others with, and its two ways there.

Where the named server lives decides: a server hosted in this process is called directly, any other over
HTTP. The caller's code and what it gets back are the same.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from itertools import count
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from nemo_gym.activity import ROLLOUT_HEADER, current_activity
from nemo_gym.codec import decode_json, encode_json
from nemo_gym.config import DEFAULT_HEAD_SERVER_PORT
from nemo_gym.config.instances import block_of, instance_names
from nemo_gym.config.plain_data import frozen_dictconfig
from nemo_gym.config_types import BaseServerConfig, ConfigError
from nemo_gym.errors import HeadServerUnreachableError
from nemo_gym.http import (
    ClientResponse,
    Cookies,
    Headers,
    ServerUnreachableError,
    fetch_text,
    request,
)
from nemo_gym.http.deadline import Deadline
from nemo_gym.session_cookies import current_sessions, parse_session_cookie, session_cookie_name

_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9_-]+)+")
"""A path without a query, an escape or a dot segment."""


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


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens: one URL for each of its workers."""

    urls: tuple[str, ...]
    cookie_name: str
    turns: "count[int]" = field(default_factory=count)
    """Whose turn it is to begin a session."""

    def url(self, cookies: Cookies) -> str:
        """The worker that holds the session; whoever's turn it is where there is none yet."""
        if len(self.urls) == 1:
            return self.urls[0]
        cookie = parse_session_cookie(cookies.get(self.cookie_name))
        worker = None if cookie is None else cookie.worker
        return self.urls[(next(self.turns) if worker is None else worker) % len(self.urls)]


def get_server_url(server_config: Mapping[str, Any] | BaseServerConfig) -> str:
    """The address of a server's block of the configuration."""
    if isinstance(server_config, BaseServerConfig):
        host, port = server_config.host, server_config.port
    else:
        host, port = server_config["host"], server_config["port"]
    return base_url(host, port)


def base_url(host: str, port: int) -> str:
    """Where to reach a server that listens on `host`: the wildcard address is not one to call."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
        self._environments: frozenset[str] | None = None
        self._session_servers: dict[str, str] | None = None

    @property
    def is_local(self) -> bool:
        """Whether it has servers of this process."""
        return bool(self._local_servers)

    @classmethod
    def load_from_global_config(cls, head_server_config: BaseServerConfig | None = None) -> "ServerClient":
        """The client of the servers opened in this context, or of those a running head server knows."""
        opened = current_client.get()
        if head_server_config is None and opened is not None:
            return opened
        head = head_server_config or cls.load_head_server_config()
        url = f"{base_url(head.host, head.port)}/global_config_dict_yaml"
        values = _config_on(fetch_text(url))
        if values is None:
            raise HeadServerUnreachableError(
                f"what answers at {url} is no head server; start one with ng_run '+config_paths=[...]', "
                "or name its address with +head_server.host=… +head_server.port=…"
            )
        return cls(head, frozen_dictconfig(values))

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

    async def request(
        self,
        server_name: str,
        url_path: str,
        method: str,
        *,
        timeout: "float | aiohttp.ClientTimeout | None" = None,  # noqa: ASYNC109 - what callers know
        **options: Any,
    ) -> ClientResponse:
        """One call: `json` or `data`, `cookies`, `headers`, `params`. A timeout is for the whole of it.

        Error statuses are answers; no answer at all is a ServerUnreachableError.
        """
        timeout_s = timeout.total if isinstance(timeout, aiohttp.ClientTimeout) else timeout
        activity, sessions = current_activity.get(), current_sessions.get()
        if activity is not None and timeout_s is None and self._is_environment(server_name):
            timeout_s = activity.call_timeout_s
        before = activity.begin(url_path) if activity is not None else None
        token = current_sessions.set(None) if sessions is not None else None
        try:
            response = await self._answer(server_name, url_path, method, timeout_s, options)
        finally:
            if token is not None:
                current_sessions.reset(token)
            if activity is not None and before is not None:
                activity.end(before)
        if sessions is not None:
            sessions.note(self, response.raw_headers)
        return response

    def server_of_cookie(self, cookie_name: str) -> str | None:
        """The server whose sessions have that cookie; None if it is not one that this client calls."""
        if self._session_servers is None:
            names = {*self._local_servers, *instance_names(self.global_config_dict)}
            self._session_servers = {session_cookie_name(name): name for name in names}
        return self._session_servers.get(cookie_name)

    async def _answer(
        self, server_name: str, url_path: str, method: str, timeout_s: float | None, options: dict[str, Any]
    ) -> ClientResponse:
        server = self._local_servers.get(server_name)
        if server is None:
            answering = self._over_http(server_name, url_path, method, **options)
        else:
            answering = server.call(_local_call(method, url_path, **options))
        if not timeout_s:
            return await answering
        try:
            with Deadline(timeout_s):
                return await answering
        except TimeoutError as error:
            reason = f"no answer to {method} {url_path} in {timeout_s:g} s"
            raise ServerUnreachableError(server_name, reason) from error

    async def _over_http(
        self,
        server_name: str,
        url_path: str,
        method: str,
        *,
        json: Any = None,
        data: bytes | str | Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        cookies: Cookies | None = None,
    ) -> ClientResponse:
        url = self._address(server_name).url(cookies or {}) + url_path
        activity = current_activity.get()
        if activity is not None:
            headers = {**(headers or {}), ROLLOUT_HEADER: activity.header()}
        try:
            response = await request(
                method, url, json=json, data=data, params=params, headers=headers, cookies=cookies
            )
            response.url = server_name + url_path  # as in one process: a port says nothing to anybody
            return response
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ServerUnreachableError(server_name, f"no answer from {method} {url}: {reason}") from error

    def _is_environment(self, server_name: str) -> bool:
        if self._environments is None:
            values = self.global_config_dict
            self._environments = frozenset(
                name for name in instance_names(values) if "resources_servers" in values[name]
            )
        return server_name in self._environments

    def _address(self, server_name: str) -> ServerAddress:
        address = self._addresses.get(server_name)
        if address is None:
            address = self._addresses[server_name] = self._find_address(server_name)
        return address

    def _find_address(self, server_name: str) -> ServerAddress:
        block = block_of(self.global_config_dict, server_name)
        if block is None:
            known = sorted({*self._local_servers, *instance_names(self.global_config_dict)})
            raise ConfigError(f"no server is named {server_name!r}; there are: {', '.join(known) or 'none'}")
        ports = block.get("worker_ports") or [block.get("port")]
        if not all(ports):
            raise ConfigError(f"{server_name!r} has no port: nobody serves it; start it with ng_run")
        urls = tuple(base_url(block.get("host", "127.0.0.1"), port) for port in ports)
        return ServerAddress(urls, session_cookie_name(server_name))


current_client: ContextVar[ServerClient | None] = ContextVar("current_client", default=None)
"""The client of the servers that are open around the running code."""


def _config_on(page: str) -> dict[str, Any] | None:
    """The configuration that a head server's page holds: YAML as a JSON text; None if it is another page."""
    import yaml

    try:
        text = decode_json(page)
        values = yaml.safe_load(text) if isinstance(text, str) else None
    except (ValueError, yaml.YAMLError):
        return None
    return values if isinstance(values, dict) else None


def _local_call(
    method: str,
    path: str,
    *,
    json: Any = None,
    data: bytes | str | Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    cookies: Cookies | None = None,
) -> Call:
    """What the keyword arguments of `post` say, as a call; every one means what it means over HTTP."""
    if json is not None and not params and not headers and _PLAIN_PATH.fullmatch(path):
        return Call(method, path, encode_json(json), True, cookies or {})
    query = ""
    if params or not _PLAIN_PATH.fullmatch(path):
        url = URL(f"http://127.0.0.1{path}")
        url = url.extend_query(params) if params else url
        path, query = url.path, url.raw_query_string
    sent_headers = {name.lower(): value for name, value in (headers or {}).items()}
    cookie = sent_headers.pop("cookie", None)
    if cookie is not None and not cookies:
        cookies = SimpleCookie(cookie)
    if json is not None:
        body = encode_json(json)
    elif isinstance(data, Mapping):
        body = urlencode(data).encode()
        sent_headers.setdefault("content-type", "application/x-www-form-urlencoded")
    else:
        body = data.encode() if isinstance(data, str) else data or b""
    is_json = json is not None and "content-type" not in sent_headers
    return Call(method, path, body, is_json, cookies or {}, query, tuple(sent_headers.items()))
