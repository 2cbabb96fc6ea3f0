"""Limits of the size of requests and responses, and the error for a response beyond them.

Invariant: nothing that a peer sends makes this process hold more than the limit of it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, AnyStr, NamedTuple

import aiohttp

from nemo_gym.errors import NeMoGymError
from nemo_gym.http.call import Call
from nemo_gym.http.client_response import shown_url

MB = 2**20
KB = 2**10
_METRICS_PATH = "/aggregate_metrics"
"""Its request has every rollout of a run, and its response has metrics of every task."""


class SizeLimits(NamedTuple):
    """The largest requests and responses, in bytes."""

    response_bytes: int = 256 * MB
    """The decompressed body of a response."""
    header_bytes: int = 64 * KB
    """The status line and all headers of a response."""
    request_bytes: int = 256 * MB
    """The body of a request to one of our own servers."""
    metrics_bytes: int = 4096 * MB
    """Request and response of `/aggregate_metrics`."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "SizeLimits":
        """The limits in a configuration; the default for each that is not set."""
        given = {
            field: int(settings[name] * unit)
            for field, (name, unit) in _SETTINGS.items()
            if settings.get(name) is not None
        }
        return cls(**given)

    def response_to(self, call: Call) -> int:
        return self.metrics_bytes if call.path == _METRICS_PATH else self.response_bytes

    def request_to(self, path: str) -> int:
        return self.metrics_bytes if path == _METRICS_PATH else self.request_bytes


_SETTINGS = {
    "response_bytes": ("max_response_mb", MB),
    "header_bytes": ("max_response_header_kb", KB),
    "request_bytes": ("max_request_mb", MB),
    "metrics_bytes": ("max_aggregate_metrics_mb", MB),
}


class TooLargeError(Exception):
    """A part of a response is too large. Transports turn it into a ResponseTooLargeError."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit
        """The name of the field of SizeLimits."""


class ResponseTooLargeError(aiohttp.ClientError, NeMoGymError):
    """A response is larger than its limit. It is not read further, and the call is not sent again."""


def header_bytes(headers: Iterable[tuple[AnyStr, AnyStr]]) -> int:
    """The size of headers on the wire."""
    return sum(len(name) + len(value) + 4 for name, value in headers)


def too_large(call: Call, limits: SizeLimits, error: TooLargeError) -> ResponseTooLargeError:
    """The error that names the call, the limit and its setting."""
    what = "the headers" if error.limit == "header_bytes" else "the body"
    is_metrics = error.limit == "response_bytes" and call.path == _METRICS_PATH
    field = "metrics_bytes" if is_metrics else error.limit
    name, unit = _SETTINGS[field]
    size = getattr(limits, field) / unit
    return ResponseTooLargeError(
        f"{what} of the response to {call.method} {shown_url(call.url)} exceed{'s' * (what == 'the body')} "
        f"{size:g} {'MB' if unit == MB else 'KB'}; if such a response is expected, set +{name}=<number>"
    )


def request_too_large(path: str, limits: SizeLimits) -> str:
    """The message of a server for a request body beyond its limit."""
    field = "metrics_bytes" if path == _METRICS_PATH else "request_bytes"
    name, unit = _SETTINGS[field]
    return (
        f"the body of this request is larger than {getattr(limits, field) / unit:g} MB, the limit of this "
        f"server; if such a request is expected, start the server with +{name}=<number>"
    )
