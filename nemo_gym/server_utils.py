"""Published names of servers and clients."""

from nemo_gym.client import ServerClient, get_server_url
from nemo_gym.config import DEFAULT_HEAD_SERVER_PORT
from nemo_gym.global_config import get_first_server_config_dict, get_global_config_dict
from nemo_gym.http import (
    MAX_NUM_TRIES,
    ClientResponse,
    GlobalAIOHTTPAsyncClientConfig,
    get_global_aiohttp_client,
    get_response_json,
    is_global_aiohttp_client_setup,
    raise_for_status,
    request,
    set_global_aiohttp_client,
)
from nemo_gym.servers.head import HeadServer
from nemo_gym.servers.server_base import BaseServer, SimpleServer, is_nemo_gym_fastapi_entrypoint
from nemo_gym.types import SESSION_ID_KEY

__all__ = [
    "DEFAULT_HEAD_SERVER_PORT",
    "MAX_NUM_TRIES",
    "SESSION_ID_KEY",
    "BaseServer",
    "ClientResponse",
    "GlobalAIOHTTPAsyncClientConfig",
    "HeadServer",
    "ServerClient",
    "SimpleServer",
    "get_first_server_config_dict",
    "get_global_aiohttp_client",
    "get_global_config_dict",
    "get_response_json",
    "get_server_url",
    "is_global_aiohttp_client_setup",
    "is_nemo_gym_fastapi_entrypoint",
    "raise_for_status",
    "request",
    "set_global_aiohttp_client",
]
