"""A blocking GET of a head server's page, for code that has no event loop yet."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import aiohttp

from nemo_gym.errors import HeadServerRefusedError, HeadServerUnreachableError, NotAHeadServerError
from nemo_gym.http.access_token import ACCESS_HEADER
from nemo_gym.http.aiohttp_client import AiohttpTransport
from nemo_gym.http.call import Call, parse_call
from nemo_gym.http.client_response import ClientResponse
from nemo_gym.http.plain_client import PlainTransport, can_send
from nemo_gym.http.size_limits import MB, ResponseTooLargeError, SizeLimits
from nemo_gym.undocumented import aiohttp_internals

_LIMITS = SizeLimits(response_bytes=16 * MB)
_LONGEST_REFUSAL = 500
_HINT = (
    "start one with ng_run '+config_paths=[...]', or give its address with "
    "+head_server.host=… +head_server.port=…"
)


def fetch_text(url: str, *, timeout_s: float = 5.0, access_token: str | None = None) -> str:
    """The text of a head server's page. `timeout_s` is for the whole of it, however slowly it arrives."""
    headers = {ACCESS_HEADER: access_token} if access_token else None
    try:
        # In a thread with an event loop of its own: the caller's may be running.
        with ThreadPoolExecutor(1, "head server") as thread:
            response = thread.submit(
                asyncio.run, _get(parse_call("GET", url, headers=headers), timeout_s)
            ).result()
        text = response.body.decode()
    except TimeoutError as error:
        reason = f"timed out: no complete response within {timeout_s:g} s"
        raise HeadServerUnreachableError(f"no head server at {url}: {reason}; {_HINT}") from error
    except (aiohttp.ClientPayloadError, ResponseTooLargeError, UnicodeDecodeError) as error:
        raise not_a_head_server(url, str(error)) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        number = getattr(getattr(error, "os_error", error), "errno", None)
        reason = os.strerror(number) if number else str(error) or type(error).__name__
        raise HeadServerUnreachableError(f"no head server at {url}: {reason}; {_HINT}") from error
    if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.MISDIRECTED_REQUEST):
        refusal = " ".join(text.split())[:_LONGEST_REFUSAL]
        raise HeadServerRefusedError(f"the head server at {url} refused the request: {refusal}")
    if response.status != HTTPStatus.OK:
        raise not_a_head_server(url, f"it responded with status {response.status}")
    return text


def not_a_head_server(url: str, reason: str) -> NotAHeadServerError:
    """The error about another program that listens where a head server was expected."""
    return NotAHeadServerError(f"the server at {url} is not a head server ({reason}); {_HINT}")


async def _get(call: Call, timeout_s: float) -> ClientResponse:
    async with asyncio.timeout(timeout_s):
        if aiohttp_internals.probe.passed and can_send(call):
            plain = PlainTransport(_LIMITS)
            try:
                return await plain.send(call)
            finally:
                plain.close()
        async with aiohttp.ClientSession() as session:
            return await AiohttpTransport(session, _LIMITS).send(call)
