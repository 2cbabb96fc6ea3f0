"""Calls: a request to a server or endpoint as a value, parsed once from the keyword arguments."""

import re
from collections.abc import Mapping
from functools import lru_cache
from io import IOBase
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from nemo_gym.codec import encode_json
from nemo_gym.http.client_response import Cookies, Headers, cookie_header, parse_cookies

_JSON = ("Content-Type", "application/json")
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_FORM = ("Content-Type", "application/x-www-form-urlencoded")
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_BYTES = (bytes, bytearray, memoryview)
_IN_PARTS = (*_BYTES, IOBase)
"""Values of a form that aiohttp sends as parts of a multipart body."""

_PLAIN_URL = re.compile(
    r"(https?://(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?)?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?"
)
"""A URL or a path without credentials, query and escapes."""
_DOT_SEGMENT = "/."


class Call(NamedTuple):
    """One request, the same for every transport."""

    method: str
    path: str
    """Percent-encoded, without dot segments."""
    body: bytes = b""
    is_json: bool = False
    """Whether the content type is `application/json`. If so, `headers` does not contain it."""
    cookies: Cookies = _NOTHING
    query: str = ""
    """Percent-encoded."""
    headers: Headers = ()
    """The headers set by the caller, without `Cookie`."""
    origin: str = ""
    """`http://host:port`, with credentials if there are any. Empty until the address of a server is known."""
    timeout_s: float | None = None
    """For the whole call. The sender of the call enforces it; transports do not."""
    aiohttp_options: Mapping[str, Any] = _NOTHING
    """Arguments that only aiohttp's `request` understands."""

    def with_body(self, body: bytes) -> "Call":
        return Call._make((*self[:2], body, *self[3:]))  # a fraction of the time of `_replace`

    def sent_to(self, origin: str, headers: Headers) -> "Call":
        """The call to a server at this address, without a timeout: the caller enforces it."""
        return Call._make((*self[:6], headers, origin, None, *self[9:]))

    @property
    def url(self) -> str:
        return f"{self.origin}{self.target}"

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def wire_headers(self) -> tuple[tuple[str, str], ...]:
        """All headers except `Host` and those for the length of the body."""
        headers = (*self.headers, _JSON) if self.is_json else tuple(self.headers)
        return (*headers, ("Cookie", cookie_header(self.cookies))) if self.cookies else headers


class Address(NamedTuple):
    """The parts of a URL, percent-encoded."""

    origin: str
    path: str
    query: str = ""


@lru_cache(maxsize=4096)
def address_of(url: str) -> Address:
    """The parts of a URL, or of a path; then the origin is empty."""
    found = _PLAIN_URL.fullmatch(url)
    if found is not None and _DOT_SEGMENT not in url:
        return Address(found[1] or "", found[2] or "/")
    return _address(url, None)


def _address(url: str, params: Mapping[str, Any] | None) -> Address:
    has_origin = not url.startswith("/")
    parsed = URL(url if has_origin else f"http://127.0.0.1{url}")
    if params:
        parsed = parsed.extend_query(params)
    origin = f"{parsed.scheme}://{parsed.raw_authority}" if has_origin else ""
    return Address(origin, parsed.raw_path, parsed.raw_query_string)


def parse_call(
    method: str,
    url: str,
    *,
    json: Any = None,
    data: Any = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    cookies: Cookies | None = None,
    timeout: "float | aiohttp.ClientTimeout | None" = None,
) -> Call:
    """The call for these arguments. `url` is a complete URL, or the path on a server."""
    method = method.upper()
    origin, path, query = _address(url, params) if params else address_of(url)
    timeout_s = timeout.total if isinstance(timeout, aiohttp.ClientTimeout) else timeout
    if json is not None and not headers:
        body = encode_json(json)
        return Call(method, path, body, True, cookies or _NOTHING, query, (), origin, timeout_s)
    payload = _payload(json, data)
    sent = [(name, value) for name, value in (headers or _NOTHING).items() if name.lower() != "cookie"]
    is_json = payload.content_type is _JSON
    if any(name.lower() == "content-type" for name, _ in sent):
        is_json = False
    elif payload.content_type is not None and not is_json:
        sent.append(payload.content_type)
    return Call(
        method,
        path,
        payload.body,
        is_json,
        cookies or _cookies_in(headers),
        query,
        tuple(sent),
        origin,
        timeout_s,
        payload.aiohttp_options,
    )


class _Payload(NamedTuple):
    body: bytes
    content_type: tuple[str, str] | None = None
    aiohttp_options: Mapping[str, Any] = _NOTHING


def _payload(json: Any, data: Any) -> _Payload:
    if json is not None:
        return _Payload(encode_json(json), _JSON)
    if data is None or isinstance(data, _BYTES):
        return _Payload(bytes(data or b""))
    if isinstance(data, str):
        return _Payload(data.encode(), _TEXT)
    if isinstance(data, Mapping) and not any(isinstance(value, _IN_PARTS) for value in data.values()):
        return _Payload(urlencode(data, doseq=True).encode(), _FORM)
    return _Payload(b"", None, {"data": data})


def _cookies_in(headers: Mapping[str, str] | None) -> Cookies:
    """The cookies in the `Cookie` header that the caller set."""
    for name, value in (headers or _NOTHING).items():
        if name.lower() == "cookie":
            return parse_cookies(value)
    return _NOTHING
