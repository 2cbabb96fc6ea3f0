"""HTTP: calls, responses, transports and retries. All outgoing HTTP goes through this package."""

from nemo_gym.http.blocking_get import fetch_text
from nemo_gym.http.call import Call, parse_call
from nemo_gym.http.client_response import (
    FAILURE_COUNT_HEADER,
    FAILURE_KIND_HEADER,
    FAILURE_SERVER_HEADER,
    FAILURE_STATUS_HEADER,
    ClientResponse,
    Cookies,
    EndpointError,
    Headers,
    ServerCallError,
    ServerUnreachableError,
    cookie_header,
    get_response_json,
    raise_for_status,
)
from nemo_gym.http.retries import send_with_retries
from nemo_gym.http.retry_policy import (
    CONNECT_ONLY,
    MAX_NUM_TRIES,
    MODEL_ENDPOINT,
    RATE_LIMIT_ERROR_CODES,
    RETRY_ERROR_CODES,
    RetryPolicy,
    retry_after_s,
)
from nemo_gym.http.size_limits import ResponseTooLargeError
from nemo_gym.http.transport import Transport
from nemo_gym.http.transport_choice import (
    GlobalAIOHTTPAsyncClientConfig,
    get_global_aiohttp_client,
    http_transport,
    is_global_aiohttp_client_setup,
    set_global_aiohttp_client,
)
from nemo_gym.http.url_request import request

__all__ = [
    "CONNECT_ONLY",
    "FAILURE_COUNT_HEADER",
    "FAILURE_KIND_HEADER",
    "FAILURE_SERVER_HEADER",
    "FAILURE_STATUS_HEADER",
    "MAX_NUM_TRIES",
    "MODEL_ENDPOINT",
    "RATE_LIMIT_ERROR_CODES",
    "RETRY_ERROR_CODES",
    "Call",
    "ClientResponse",
    "Cookies",
    "EndpointError",
    "GlobalAIOHTTPAsyncClientConfig",
    "Headers",
    "ResponseTooLargeError",
    "RetryPolicy",
    "ServerCallError",
    "ServerUnreachableError",
    "Transport",
    "cookie_header",
    "fetch_text",
    "get_global_aiohttp_client",
    "get_response_json",
    "http_transport",
    "is_global_aiohttp_client_setup",
    "parse_call",
    "raise_for_status",
    "request",
    "retry_after_s",
    "send_with_retries",
    "set_global_aiohttp_client",
]
