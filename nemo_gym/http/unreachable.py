"""Turns connection errors of a call into a ServerUnreachableError that names the call."""

from types import TracebackType

import aiohttp
from yarl import URL

from nemo_gym.failures import Boundary, kind_of_exception
from nemo_gym.http.call import Call
from nemo_gym.http.client_response import GivenUpError, ServerUnreachableError

_CONNECTION_ERRORS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError)
"""OSError includes TimeoutError."""


class reports_unreachable:
    """Used as `with reports_unreachable("server", call, boundary):` around sending a call over HTTP."""

    __slots__ = ("_boundary", "_call", "_server")

    def __init__(self, server: str, call: Call, boundary: Boundary) -> None:
        self._server = server
        self._call = call
        self._boundary = boundary

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, _CONNECTION_ERRORS) and not isinstance(error, ServerUnreachableError):
            where = URL(self._call.url, encoded=True).with_user(None).with_query(None)
            reason = str(error) or type(error).__name__
            message = f"no response from {self._call.method} {where}: {reason}"
            if isinstance(error, GivenUpError):
                failure_kind = kind_of_exception(error.error, self._boundary)
                count, is_outage = error.failure_count, error.is_outage
            else:
                failure_kind, count, is_outage = kind_of_exception(error, self._boundary), 1, False
            raise ServerUnreachableError(self._server, message, failure_kind, count, is_outage) from error
