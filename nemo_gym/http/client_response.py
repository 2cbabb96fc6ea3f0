"""Responses of servers, the errors raised for them, and their cookies.

Invariant: a response is read to its end before the caller gets it, so no caller can hold a connection.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from http.cookies import CookieError, Morsel, SimpleCookie
from json import JSONDecodeError
from types import MappingProxyType
from typing import Any, Self

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.codec import decode_json
from nemo_gym.errors import NeMoGymError
from nemo_gym.failures import Boundary, FailureKind, kind_in_header, kind_of_response

FAILURE_KIND_HEADER = "x-nemo-gym-failure-kind"
FAILURE_SERVER_HEADER = "x-nemo-gym-failure-server"
FAILURE_STATUS_HEADER = "x-nemo-gym-failure-status"
FAILURE_COUNT_HEADER = "x-nemo-gym-failure-count"
"""How many of the failures that its rollout may have the failure counts as; 1 if absent."""

_URL_USER = re.compile(r"//[^/?#]*@")

Cookies = Mapping[str, "str | Morsel[str]"]
Headers = Sequence[tuple[str, str]]
_NO_COOKIES: Cookies = MappingProxyType({})


class _Content:
    """The value of `response.content`: the body as a stream that can be read once."""

    __slots__ = ("_body", "_position")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    async def read(self, n: int = -1) -> bytes:
        start = self._position
        self._position = len(self._body) if n < 0 else min(len(self._body), start + n)
        return self._body[start : self._position]


class ClientResponse:
    """A response that has been read completely; every transport returns this class."""

    __slots__ = (
        "_body",
        "_content",
        "_cookies",
        "_headers",
        "method",
        "raw_headers",
        "sent_cookies",
        "status",
        "url",
    )

    def __init__(
        self, status: int, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> None:
        self.status = status
        self.method = method
        self.url = url
        self.sent_cookies: Cookies = _NO_COOKIES
        """The cookies of the request. `cookies` has the same objects where they come back unchanged."""
        self.raw_headers = headers
        self._body = body
        self._headers: CIMultiDictProxy[str] | None = None
        self._cookies: SimpleCookie | None = None
        self._content: _Content | None = None

    def __repr__(self) -> str:
        return f"<ClientResponse [{self.status}] {self.method} {shown_url(self.url)}>"

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        if self._headers is None:
            self._headers = CIMultiDictProxy(CIMultiDict(self.raw_headers))
        return self._headers

    @property
    def cookies(self) -> SimpleCookie:
        """The cookies that this response sets, as aiohttp returns them: name to morsel."""
        if self._cookies is None:
            fields = [
                value
                for name, value in self.raw_headers
                if name == "set-cookie" or name.lower() == "set-cookie"
            ]
            self._cookies = _jar(fields, self.sent_cookies)
        return self._cookies

    @property
    def content(self) -> _Content:
        if self._content is None:
            self._content = _Content(self._body)
        return self._content

    @property
    def body(self) -> bytes:
        return self._body

    async def read(self) -> bytes:
        return self._body

    async def text(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return self._body.decode(encoding, errors)

    async def json(self, **_: Any) -> Any:
        try:
            return decode_json(self._body)
        except (ValueError, RecursionError) as error:
            raise NoJsonError(self, error) from None

    def raise_for_status(self) -> None:
        if not self.ok:
            raise ServerCallError(self)

    def release(self) -> None:
        """Does nothing; for code written for aiohttp's response."""

    close = release

    async def __aenter__(self) -> "ClientResponse":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class ServerCallError(aiohttp.ClientResponseError, NeMoGymError):
    """A server responded with an error. Names the server that failed first and the kind of the failure."""

    boundary = Boundary.CALL

    def __init__(self, response: ClientResponse) -> None:
        headers = response.headers
        self.response_content = response._body
        self.server = headers.get(FAILURE_SERVER_HEADER, "")
        self.origin_status = int(headers.get(FAILURE_STATUS_HEADER) or response.status)
        self.failure_count = int(headers.get(FAILURE_COUNT_HEADER) or 1)
        named = kind_in_header(headers.get(FAILURE_KIND_HEADER))
        self.names_kind = named is not None
        """Whether the response itself names the kind of the failure."""
        self.kind = named or kind_of_response(self.origin_status, self.response_content, self.boundary)
        url = URL(shown_url(response.url))
        info = aiohttp.RequestInfo(url, response.method, CIMultiDictProxy(CIMultiDict()), url)
        text = self.response_content[:2000].decode("utf-8", "replace")
        super().__init__(info, (), status=response.status, message=text, headers=headers)

    def __reduce__(self) -> tuple[Any, ...]:
        headers = tuple(self.headers.items()) if self.headers else ()
        method, url = self.request_info.method, str(self.request_info.url)
        return _rebuilt, (type(self), self.status, headers, self.response_content, method, url)

    def with_kind(self, kind: FailureKind) -> Self:
        """The same error with another kind."""
        others = [item for item in (self.headers or {}).items() if item[0].lower() != FAILURE_KIND_HEADER]
        headers = (*others, (FAILURE_KIND_HEADER, kind.value))
        method, url = self.request_info.method, str(self.request_info.url)
        return type(self)(ClientResponse(self.status, headers, self.response_content, method=method, url=url))

    def __str__(self) -> str:
        origin = f" ({self.server} responded with {self.origin_status})" if self.server else ""
        return f"{self.request_info.method} {self.request_info.url}: {self.status}{origin}: {self.message}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def _rebuilt(
    cls: type[ServerCallError], status: int, headers: Headers, body: bytes, method: str, url: str
) -> ServerCallError:
    """Rebuild an error that was pickled."""
    return cls(ClientResponse(status, headers, body, method=method, url=url))


class EndpointError(ServerCallError):
    """A model endpoint responded with an error; a model server passes its status and body on."""

    boundary = Boundary.ENDPOINT


class GivenUpError(aiohttp.ClientConnectionError):
    """The last connection error of a call that was tried several times."""

    def __init__(self, error: Exception, failure_count: int, is_outage: bool) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.error = error
        self.failure_count = failure_count
        self.is_outage = is_outage


class ServerUnreachableError(aiohttp.ClientConnectionError, NeMoGymError):
    """No response: connection refused, broken or timed out, or the address does not resolve."""

    def __init__(
        self,
        server: str,
        reason: str,
        kind: FailureKind = FailureKind.INFRASTRUCTURE,
        failure_count: int = 1,
        is_outage: bool = False,
    ) -> None:
        super().__init__(f"{server}: {reason}" if server else reason)
        self.server = server
        self.reason = reason
        self.kind = kind
        self.failure_count = failure_count
        """How many of the failures that its rollout may have it counts as."""
        self.is_outage = is_outage
        """Whether the caller may wait for the server without limit."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.server, self.reason, self.kind, self.failure_count, self.is_outage)


class NoJsonError(ServerUnreachableError, JSONDecodeError):
    """The body of a response is not JSON: it was cut off, or it is an error page of a gateway."""

    def __init__(self, response: ClientResponse, error: Exception) -> None:
        body = response._body.decode("utf-8", "replace")
        call = f"{response.method} {shown_url(response.url)}"
        reason = (
            f"{call} responded with {response.status} and a body that is not JSON ({error}): {body[:200]!r}"
        )
        if 300 <= response.status < 400:
            reason += f"; it redirects to {redirect_target(response)}"
        JSONDecodeError.__init__(self, reason, body, getattr(error, "pos", 0))
        self.args, self.server, self.reason = (reason,), "", reason
        self.kind = FailureKind.INFRASTRUCTURE
        self.failure_count, self.is_outage = 1, False

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerUnreachableError, (self.server, self.reason)


def redirect_target(response: ClientResponse) -> str:
    return shown_url(response.headers.get("Location", "an unknown address"))


def shown_url(url: str) -> str:
    """A URL without the parts that may be secret: user, password and query."""
    return _URL_USER.sub("//", url).partition("?")[0]


async def raise_for_status(response: "ClientResponse | aiohttp.ClientResponse") -> None:
    """Raise an error that carries `status` and `response_content` if the status is an error.

    Takes responses of the shared aiohttp client too.
    """
    if isinstance(response, aiohttp.ClientResponse) and not response.ok:
        headers, body = tuple(response.headers.items()), await response.read()
        url = str(response.url)
        response = ClientResponse(response.status, headers, body, method=response.method, url=url)
    response.raise_for_status()


async def get_response_json(response: "ClientResponse | aiohttp.ClientResponse") -> Any:
    return await response.json()


def cookie_header(cookies: Cookies) -> str:
    """Cookies as the value of a Cookie header."""
    return "; ".join([f"{name}={_coded(value)}" for name, value in cookies.items()])


def _coded(value: "str | Morsel[str]") -> str:
    if isinstance(value, Morsel):
        return value.coded_value
    return value if value.isascii() and value.isalnum() else SimpleCookie().value_encode(value)[1]


def parse_cookies(header: str) -> SimpleCookie:
    """The cookies of a Cookie header, with their original spelling."""
    return _jar(header.split(";"), _NO_COOKIES)


def _jar(fields: Iterable[str], known: Cookies) -> SimpleCookie:
    """The cookies that these fields begin with; those whose names are not valid are ignored.

    A morsel in `known` is used again if it has the same value: a new one takes three times as long, and every
    response of a server sets the cookie of its session.
    """
    cookies = SimpleCookie()
    for field in fields:
        name, _, coded = field.partition(";")[0].partition("=")
        name, coded = name.strip(), coded.strip()
        morsel = known.get(name)
        if not isinstance(morsel, Morsel) or morsel.coded_value != coded or morsel.key != name:
            value = cookies.value_decode(coded)[0] if coded.startswith('"') else coded
            morsel = Morsel()
            try:
                morsel.set(name, value, coded)
            except CookieError:
                continue
        dict.__setitem__(cookies, name, morsel)  # a SimpleCookie looks at strings only
    return cookies
