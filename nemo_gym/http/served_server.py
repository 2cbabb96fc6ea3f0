"""A server in another process: its address, and the transport for calls to it."""

from dataclasses import dataclass, field
from itertools import count

from nemo_gym.activity import ROLLOUT_HEADER, current_activity, waited_s
from nemo_gym.endpoint_health import Endpoint
from nemo_gym.failures import Boundary
from nemo_gym.http.access_token import ACCESS_HEADER
from nemo_gym.http.call import Call
from nemo_gym.http.client_response import ClientResponse, Cookies
from nemo_gym.http.retries import send_with_retries
from nemo_gym.http.retry_policy import CONNECT_ONLY
from nemo_gym.http.transport_choice import http_transport
from nemo_gym.http.unreachable import reports_unreachable
from nemo_gym.session_cookies import parse_session_cookie


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens: one URL for each of its workers."""

    urls: tuple[str, ...]
    cookie_name: str
    turns: "count[int]" = field(default_factory=count)
    """Counts new sessions, so that each begins on the next worker."""

    def url(self, cookies: Cookies) -> str:
        """The URL of the worker that has the session; without a session, of the next worker."""
        if len(self.urls) == 1:
            return self.urls[0]
        cookie = parse_session_cookie(cookies.get(self.cookie_name))
        worker = None if cookie is None else cookie.worker
        return self.urls[(next(self.turns) if worker is None else worker) % len(self.urls)]


class ServedServer:
    """Sends calls to a server in another process, with a header that names the rollout."""

    def __init__(self, name: str, address: ServerAddress, access_token: str | None = None) -> None:
        self.name = name
        self.address = address
        self._own_headers = ((ACCESS_HEADER, access_token),) if access_token else ()

    async def send(self, call: Call) -> ClientResponse:
        headers = (*call.headers, *self._own_headers) if self._own_headers else call.headers
        activity = current_activity.get()
        if activity is not None:
            others = [pair for pair in headers if pair[0].lower() != ROLLOUT_HEADER]
            headers = (*others, (ROLLOUT_HEADER, activity.header()))
        url = self.address.url(call.cookies)
        sent = call.sent_to(url, headers)
        with reports_unreachable(self.name, sent, Boundary.CALL):
            endpoint = Endpoint(self.name, url, is_server=True)
            response = await send_with_retries(http_transport(sent), sent, CONNECT_ONLY, endpoint=endpoint)
        if activity is not None and activity.endpoints is not None:
            activity.add_wait(waited_s(response.raw_headers))
        response.url = (
            self.name + call.path
        )  # as for a server in this process: the name says more than a port
        return response
