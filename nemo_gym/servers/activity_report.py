"""The rollouts in a server process. Their deadlines are enforced here too. `/ng_activity` reports what they
wait for, the endpoints that they call, and how many calls each endpoint gets at once.

Callers in other processes send the activity of the rollout as a header (`nemo_gym.activity`).
"""

import logging
from itertools import islice
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.activity import (
    ROLLOUT_HEADER,
    WAITED_HEADER,
    Activity,
    EndpointLimits,
    activity_from,
    current_activity,
)
from nemo_gym.codec import decode_json, encode_json
from nemo_gym.endpoint_health import RunEndpoints
from nemo_gym.http.deadline import Deadline
from nemo_gym.servers.asgi import read_body, send_reply
from nemo_gym.types import ACTIVITY_PATH

logger = logging.getLogger(__name__)

_HEADER = ROLLOUT_HEADER.encode()
_SHOWN = 1000
_KEPT_RUNS = 8
_LATER_S = 5.0
"""How much later than by the caller a rollout is given up: its waits are known here only after some time."""


class Activities:
    """Wraps the application of a server process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._limits = EndpointLimits(0)
        self._runs: dict[str, RunEndpoints] = {}
        self._running: dict[Activity, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == ACTIVITY_PATH and scope["method"] in ("GET", "POST"):
            report = self._report() if scope["method"] == "GET" else await self._exchange(receive)
            await send_reply(send, (200, [("content-type", "application/json")], encode_json(report)))
            return
        header = next((value for name, value in scope["headers"] if name == _HEADER), None)
        activity = None
        if header is not None:
            activity = activity_from(header.decode("latin-1"), self._limits, self._endpoints_of)
        if activity is None:
            await self._app(scope, receive, send)
            return
        await self._run(activity, scope, receive, send)

    def _endpoints_of(self, run: str) -> RunEndpoints:
        endpoints = self._runs.get(run)
        if endpoints is None:
            while len(self._runs) >= _KEPT_RUNS:
                del self._runs[next(iter(self._runs))]
            endpoints = self._runs[run] = RunEndpoints(run)
        return endpoints

    def _report(self) -> dict[str, object]:
        """What the rollouts in this process wait for, and how many calls each endpoint gets at once."""
        return {
            "rollouts": [activity.as_data() for activity in islice(self._running, _SHOWN)],
            "limits": self._limits.current(),
        }

    async def _exchange(self, receive: Receive) -> dict[str, object]:
        """For the driver of a run: its endpoints, and how long its rollouts have waited here for them.

        The driver sends how long they have waited anywhere.
        """
        request: Any = decode_json(await read_body(receive) or b"{}")
        run, all_waits = request.get("run"), request.get("waits") or {}
        own = [one for one in self._running if one.endpoints is not None and one.endpoints.run == run]
        waits: dict[str, float] = {}
        for activity in own:
            here_s = activity.waited_here_s()
            if here_s:
                waits[activity.key] = waits.get(activity.key, 0.0) + here_s
            if all_waits:
                activity.waited_elsewhere_s = max(0.0, all_waits.get(activity.key, 0.0) - here_s)
        endpoints = self._runs[run].reports() if run in self._runs else []
        return {
            "limits": self._limits.current(),
            "endpoints": [report.as_data() for report in endpoints],
            "waits": waits,
        }

    async def _run(self, activity: Activity, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_wait(message: Message) -> None:
            if message["type"] == "http.response.start" and (waited_s := activity.waited_here_s()):
                headers = [*message.get("headers", ()), (WAITED_HEADER.encode(), b"%.3f" % waited_s)]
                message = {**message, "headers": headers}
            await send(message)

        current_activity.set(activity)  # each request has its own context
        self._running[activity] = None
        try:
            left_s = activity.left_s()
            with Deadline(None if left_s is None else left_s + _LATER_S, activity.waited_s):
                await self._app(scope, receive, send_with_wait)
        except TimeoutError:  # the caller has given up too
            logger.warning("rollout %s: %s did not finish in time", activity.rollout, scope["path"])
        finally:
            del self._running[activity]
