"""The client every component calls others with.

It chooses the transport by where the named server lives: a server hosted in this process is called directly,
any other over HTTP. The caller's code and the response are the same.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from nemo_gym.activity import current_activity
from nemo_gym.config import DEFAULT_HEAD_SERVER_PORT
from nemo_gym.config.instances import block_of, instance_names
from nemo_gym.config_types import BaseServerConfig, ConfigError
from nemo_gym.head_page import config_on_page
from nemo_gym.http import Call, ClientResponse, ServerUnreachableError, Transport, fetch_text, parse_call
from nemo_gym.http.access_token import WILDCARDS, find_access_token
from nemo_gym.http.deadline import Deadline
from nemo_gym.http.served_server import ServedServer, ServerAddress
from nemo_gym.session_cookies import current_sessions, session_cookie_name
from nemo_gym.types import HEAD_SERVER_KEY_NAME


def get_server_url(server_config: Mapping[str, Any] | BaseServerConfig) -> str:
    """The address of a server's block of the configuration."""
    if isinstance(server_config, BaseServerConfig):
        host, port = server_config.host, server_config.port
    else:
        host, port = server_config["host"], server_config["port"]
    return base_url(host, port)


def base_url(host: str, port: int) -> str:
    """The URL of a server that listens on `host`; the wildcard address cannot be called."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _InFlight:
    """A call that is being made.

    It is noted on the rollout that it belongs to and given up at its deadline. The sessions that its response
    brings are noted on the run that makes it, and the server that is called does not see that run.
    """

    __slots__ = (
        "_activity",
        "_before",
        "_call",
        "_client",
        "_deadline",
        "_server",
        "_sessions",
        "_token",
    )

    def __init__(self, client: "ServerClient", server_name: str, call: Call) -> None:
        self._client = client
        self._server = server_name
        self._call = call
        self._activity = current_activity.get()
        self._sessions = current_sessions.get()
        self._deadline: Deadline | None = None
        if call.timeout_s is not None:
            self._deadline = Deadline(call.timeout_s) if call.timeout_s else None
        elif self._activity is not None and client.is_environment(server_name):
            limit_s = self._activity.call_timeout_s
            self._deadline = Deadline(limit_s, self._activity.waited_s) if limit_s else None

    def __enter__(self) -> "_InFlight":
        if self._activity is not None:
            self._before = self._activity.begin(self._call.path)
        if self._sessions is not None:
            self._token = current_sessions.set(None)
        if self._deadline is not None:
            self._deadline.__enter__()
        return self

    def received(self, response: ClientResponse) -> ClientResponse:
        response.sent_cookies = self._call.cookies
        if self._sessions is not None:
            self._sessions.note(self._client, response.raw_headers)
        return response

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sessions is not None:
            current_sessions.reset(self._token)
        if self._activity is not None:
            self._activity.end(self._before)
        if self._deadline is None:
            return
        try:
            self._deadline.__exit__(kind, error, trace)
        except TimeoutError as timeout:
            reason = (
                f"no response to {self._call.method} {self._call.path} within {self._deadline.seconds:g} s"
            )
            raise ServerUnreachableError(self._server, reason) from timeout


class ServerClient:
    """Calls servers by their instance name."""

    def __init__(
        self,
        head_server_config: BaseServerConfig | None = None,
        global_config_dict: Mapping[str, Any] | None = None,
        *,
        local_servers: Mapping[str, Transport] | None = None,
        access_token: str | None = None,
    ) -> None:
        self.head_server_config = head_server_config
        self.global_config_dict = global_config_dict if global_config_dict is not None else {}
        if access_token is None:
            access_token = self.global_config_dict.get("access_token")
        self.access_token = access_token or None
        """For servers that listen beyond their machine."""
        self._local_servers = local_servers if local_servers is not None else {}
        self._served: dict[str, ServedServer] = {}
        self._environments: frozenset[str] | None = None
        self._session_servers: dict[str, str] | None = None

    @property
    def is_local(self) -> bool:
        """Whether it has servers in this process."""
        return bool(self._local_servers)

    @classmethod
    def load_from_global_config(
        cls, head_server_config: BaseServerConfig | None = None, *, access_token: str | None = None
    ) -> "ServerClient":
        """The client of the servers opened in this context, or of those that a running head server knows."""
        opened = current_client.get()
        if head_server_config is None and opened is not None:
            return opened
        head = head_server_config or cls.load_head_server_config()
        url = f"{base_url(head.host, head.port)}/global_config_dict_yaml"
        token = find_access_token(head.host, head.port, access_token or cls._configured_access_token())
        values = config_on_page(url, fetch_text(url, access_token=token))
        return cls(head, values, access_token=token or "")  # theirs is masked

    @classmethod
    def _configured_access_token(cls) -> str | None:
        from nemo_gym.config.current import process_setting

        token = process_setting("access_token")
        return None if token is None else str(token)

    @classmethod
    def load_head_server_config(cls) -> BaseServerConfig:
        """The head server's address: from the configuration of this process, env.yaml or the default."""
        from nemo_gym.config.current import process_setting

        given = process_setting(HEAD_SERVER_KEY_NAME) or {}
        return BaseServerConfig.model_validate(
            {"host": "127.0.0.1", "port": DEFAULT_HEAD_SERVER_PORT, **given}
        )

    async def get(self, server_name: str, url_path: str, **options: Any) -> ClientResponse:
        call = parse_call("GET", url_path, **options)
        with _InFlight(self, server_name, call) as flight:
            return flight.received(await self._transport_to(server_name).send(call))

    async def post(self, server_name: str, url_path: str, **options: Any) -> ClientResponse:
        call = parse_call("POST", url_path, **options)
        with _InFlight(self, server_name, call) as flight:
            return flight.received(await self._transport_to(server_name).send(call))

    async def request(self, server_name: str, url_path: str, method: str, **options: Any) -> ClientResponse:
        """One call: `json` or `data`, `cookies`, `headers`, `params`, and a `timeout` for the whole of it.

        Error statuses are responses; no response at all is a ServerUnreachableError.
        """
        call = parse_call(method, url_path, **options)
        with _InFlight(self, server_name, call) as flight:
            return flight.received(await self._transport_to(server_name).send(call))

    def _transport_to(self, server_name: str) -> Transport:
        """How calls reach a server: where it lives decides."""
        local = self._local_servers.get(server_name)
        if local is not None:
            return local
        served = self._served.get(server_name)
        if served is None:
            served = self._served[server_name] = ServedServer(
                server_name, self._find_address(server_name), self.access_token
            )
        return served

    def server_of_cookie(self, cookie_name: str) -> str | None:
        """The server whose sessions have that cookie; None if it is not one that this client calls."""
        if self._session_servers is None:
            names = {*self._local_servers, *instance_names(self.global_config_dict)}
            self._session_servers = {session_cookie_name(name): name for name in names}
        return self._session_servers.get(cookie_name)

    def is_environment(self, server_name: str) -> bool:
        if self._environments is None:
            values = self.global_config_dict
            self._environments = frozenset(
                name for name in instance_names(values) if "resources_servers" in values[name]
            )
        return server_name in self._environments

    def _find_address(self, server_name: str) -> ServerAddress:
        block = block_of(self.global_config_dict, server_name)
        if block is None:
            known = sorted({*self._local_servers, *instance_names(self.global_config_dict)})
            raise ConfigError(
                f"no server is named {server_name!r}; known servers: {', '.join(known) or 'none'}"
            )
        ports = block.get("worker_ports") or [block.get("port")]
        if not all(ports):
            raise ConfigError(
                f"{server_name!r} has no port because it is not being served; start it with ng_run"
            )
        host = block.get("host", "127.0.0.1")
        head = self.head_server_config
        if host in WILDCARDS and head is not None and head.host not in WILDCARDS:
            host = head.host  # the address at which its machine was reached
        urls = tuple(base_url(host, port) for port in ports)
        return ServerAddress(urls, session_cookie_name(server_name))


current_client: ContextVar[ServerClient | None] = ContextVar("current_client", default=None)
"""The client of the servers that are open in the running context."""
