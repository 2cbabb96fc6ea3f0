"""The rollouts in a server process. Their deadlines are enforced here too. `/ng_activity` reports what they
wait for, and the limit of concurrent calls of each endpoint.

Callers in other processes send the activity of the rollout as a header (`nemo_gym.activity`).
"""

import logging
from itertools import islice

from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.activity import ROLLOUT_HEADER, Activity, EndpointLimits, activity_from, current_activity
from nemo_gym.codec import encode_json
from nemo_gym.http.deadline import Deadline
from nemo_gym.servers.asgi import send_reply
from nemo_gym.types import ACTIVITY_PATH

logger = logging.getLogger(__name__)

_HEADER = ROLLOUT_HEADER.encode()
_SHOWN = 1000


class Activities:
    """Wraps the application of a server process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._limits = EndpointLimits(0)
        self._running: dict[Activity, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == ACTIVITY_PATH and scope["method"] == "GET":
            await send_reply(send, (200, [("content-type", "application/json")], encode_json(self._report())))
            return
        header = next((value for name, value in scope["headers"] if name == _HEADER), None)
        activity = activity_from(header.decode("latin-1"), self._limits) if header is not None else None
        if activity is None:
            await self._app(scope, receive, send)
            return
        await self._run(activity, scope, receive, send)

    def _report(self) -> dict[str, object]:
        """What the rollouts in this process wait for, and how many calls each endpoint gets at once."""
        return {
            "rollouts": [activity.as_data() for activity in islice(self._running, _SHOWN)],
            "limits": self._limits.current(),
        }

    async def _run(self, activity: Activity, scope: Scope, receive: Receive, send: Send) -> None:
        current_activity.set(activity)  # each request has its own context
        self._running[activity] = None
        try:
            left_s = activity.left_s()
            # A little longer than the caller waits, so that the deadline passes there first.
            with Deadline(None if left_s is None else left_s + 1.0):
                await self._app(scope, receive, send)
        except TimeoutError:  # the caller has given up too
            logger.warning("rollout %s: %s did not finish in time", activity.rollout, scope["path"])
        finally:
            del self._running[activity]
