"""A server process reports its running rollouts."""

import asyncio
import json
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from nemo_gym.activity import ROLLOUT_HEADER, Activity, EndpointLimits, current_activity
from nemo_gym.servers.activity_report import Activities
from nemo_gym.types import ACTIVITY_PATH

ENDPOINT = "http://host:8000/v1/responses"


class Process:
    """A server process whose rollouts call the endpoint and wait for `let_go`."""

    def __init__(self) -> None:
        self._let_go = asyncio.Event()
        self._app = Activities(self._play)

    async def _play(self, scope: Scope, receive: Receive, send: Send) -> None:
        activity = current_activity.get()
        assert activity is not None
        if activity.limits is not None:
            activity.limits.of(ENDPOINT)
        activity.begin("/v1/responses")
        await self._let_go.wait()

    def play(self, activity: Activity) -> "asyncio.Task[Any]":
        headers = [(ROLLOUT_HEADER.encode(), activity.header().encode())]
        return asyncio.create_task(self._request("POST", "/run", headers))

    async def report(self) -> Any:
        return json.loads(await self._request("GET", ACTIVITY_PATH, []))

    def let_go(self) -> None:
        self._let_go.set()

    async def _request(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> bytes:
        body = b""

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal body
            body += message.get("body", b"")

        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        await self._app(scope, receive, send)
        return body


def test_process_reports_waiting_rollouts_and_endpoint_limits() -> None:
    async def run() -> None:
        process = Process()
        assert await process.report() == {"rollouts": [], "limits": {}}
        playing = process.play(Activity("3:1", limits=EndpointLimits(64)))
        await asyncio.sleep(0)
        report = await process.report()
        assert [one["rollout"] for one in report["rollouts"]] == ["3:1"]
        assert "model call 1" in report["rollouts"][0]["waits_for"]
        assert report["limits"] == {"host:8000": 16}
        process.let_go()
        await playing
        assert (await process.report())["rollouts"] == []

    asyncio.run(run())


def test_rollouts_whose_concurrency_does_not_adapt_have_no_limits() -> None:
    async def run() -> None:
        process = Process()
        playing = process.play(Activity("0:0"))
        await asyncio.sleep(0)
        assert (await process.report())["limits"] == {}
        process.let_go()
        await playing

    asyncio.run(run())
