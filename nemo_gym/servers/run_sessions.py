"""The end of an agent's run: the sessions that began in it are closed on their servers.

Closing never changes the result or the error of the run and delays it by at most `timeout_s`. After that, the
server continues to close the session.
"""

import asyncio
import logging
from collections.abc import Iterable

from nemo_gym.activity import current_activity
from nemo_gym.failures import MISSING_ROUTE_STATUSES
from nemo_gym.http import Cookies
from nemo_gym.servers.sessions import SessionStore
from nemo_gym.session_cookies import (
    CLOSE_SESSION_PATH,
    SESSION_HEADER,
    ReceivedSession,
    ReceivedSessions,
    current_sessions,
    session_id_in,
)

logger = logging.getLogger(__name__)


class RunSessions:
    """Closes the sessions of one agent's runs."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._without_route: set[str] = set()
        """Servers without the route; they are not called again."""
        self._warned: set[str] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def begin(self, cookies: Cookies, *, closes: bool) -> "AgentRequest":
        """Call when a request to the agent starts, with its cookies; `closes` if it is a run."""
        return AgentRequest(self, cookies, closes)

    def start_closing(self, sessions: Iterable[ReceivedSession]) -> "asyncio.Task[None]":
        """Close the sessions in a separate task, which continues if the run is cancelled."""
        task = asyncio.create_task(self._close_all(list(sessions)))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _close_all(self, sessions: list[ReceivedSession]) -> None:
        current_activity.set(None)  # the deadlines of the rollout do not apply
        await asyncio.gather(*map(self._close, sessions))

    async def _close(self, session: ReceivedSession) -> None:
        name = session.server_name
        if name in self._without_route:
            return
        try:
            response = await session.client.post(
                name,
                CLOSE_SESSION_PATH,
                cookies={session.cookie_name: session.cookie_value},
                timeout=self.timeout_s,
            )
        except Exception as error:  # the boundary: a session that cannot be closed must not fail its rollout
            self._warn(name, str(error))
            return
        if response.status in MISSING_ROUTE_STATUSES:
            self._without_route.add(name)
        elif not response.ok:
            self._warn(name, f"{response.status} {(await response.text())[:200]}")

    def _warn(self, server_name: str, reason: str) -> None:
        level = logging.DEBUG if server_name in self._warned else logging.WARNING
        self._warned.add(server_name)
        logger.log(level, "%s: cannot close a session: %s", server_name, reason)


class AgentRequest(ReceivedSessions):
    """One request to an agent. Until `leave`, it is the `current_sessions` of the code that serves it.

    A run closes the sessions that began in it. Any other request, such as the agent's call of its own
    `/v1/responses`, reports them to its caller, even if it fails.
    """

    __slots__ = ("_closer", "_closes", "_is_over", "_token")

    def __init__(self, closer: RunSessions, cookies: Cookies, closes: bool) -> None:
        super().__init__(cookies)
        self._closer = closer
        self._closes = closes
        self._is_over = False
        self._token = current_sessions.set(self)

    def passed_on(self) -> list[tuple[str, str]]:
        """The headers that name these sessions to the caller."""
        kept = () if self._closes else self.kept.values()
        return [(SESSION_HEADER, f"{one.cookie_name}={one.cookie_value};") for one in kept]

    def leave(self, store: SessionStore, session_id: str) -> None:
        """Call when the code that serves the request has finished, before `close_sessions`.

        A run ends its session on the agent itself, too, unless the caller brought it.
        """
        current_sessions.reset(self._token)
        if not self._closes or not store.holds(session_id):
            return
        if session_id_in(self.brought.get(store.cookie_name)) != session_id:
            store.start_ending(session_id)

    async def close_sessions(self) -> None:
        """Close the sessions that the caller does not know. A cancelled request does not wait for it."""
        if self._is_over or not self.kept:
            return
        self._is_over = True
        running = asyncio.current_task()
        is_cancelled = running is not None and running.cancelling() > 0
        if self._closes or is_cancelled:
            closing = self._closer.start_closing(self.kept.values())
            if not is_cancelled:
                await asyncio.wait({closing}, timeout=self._closer.timeout_s)
