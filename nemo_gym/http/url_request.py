"""A call to a URL, for code without a `ServerClient`."""

from collections.abc import Mapping
from typing import Any

from nemo_gym.http.call import parse_call
from nemo_gym.http.client_response import ClientResponse, Cookies
from nemo_gym.http.retries import send_with_retries
from nemo_gym.http.retry_policy import CONNECT_ONLY, RetryPolicy
from nemo_gym.http.transport_choice import http_transport


async def request(
    method: str,
    url: str,
    *,
    json: Any = None,
    data: Any = None,
    headers: Mapping[str, str] | None = None,
    cookies: Cookies | None = None,
    params: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    retry: RetryPolicy = CONNECT_ONLY,
    **options: Any,
) -> ClientResponse:
    """Make one HTTP call and return its response, whatever its status.

    `timeout_s` applies to the call and to each retry. Other options are passed to aiohttp.
    """
    call = parse_call(
        method, url, json=json, data=data, params=params, headers=headers, cookies=cookies, timeout=timeout_s
    )
    if options:
        call = call._replace(aiohttp_options={**call.aiohttp_options, **options})
    return await send_with_retries(http_transport(call), call, retry)
