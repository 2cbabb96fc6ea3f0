"""The model endpoint of a campaign: some of its responses are errors, garbage, or late."""

import asyncio
import gzip
import random

from aiohttp import web

from scripts.scripted_endpoint import Output
from tests.support.collecting import failing

FAULTS = ("429", "500", "503", "garbage", "late", "redirect", "too_large")
SHARE = 0.1
"""The share of the responses that have the fault."""
USUAL_DELAY_S = 0.01
LARGEST_MB = 4
"""What the collections of a campaign accept as the body of a response (`max_response_mb`)."""
_TOO_LARGE = gzip.compress(b" " * (2 * LARGEST_MB * 2**20), 1)


class EndpointFaults:
    """The override of an `Adder`. `fault` is one of FAULTS, or None."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self.fault: str | None = None

    async def __call__(self, number: int, times: int) -> Output | None:
        await asyncio.sleep(USUAL_DELAY_S)
        if self.fault is None or self._random.random() > SHARE:
            return None
        if self.fault.isdecimal():
            return failing(int(self.fault))
        if self.fault == "late":
            await asyncio.sleep(0.3)
            return None
        if self.fault == "too_large" and times > 1:
            return None  # counts as a data failure, of which a rollout may have few
        return _odd_response(self.fault)


def _odd_response(fault: str) -> web.Response:
    if fault == "garbage":
        return web.Response(body=b'{"output": [{"type": "mess', content_type="application/json")
    if fault == "redirect":
        return web.Response(status=307, headers={"Location": "http://127.0.0.1:9/v1/responses"})
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    return web.Response(body=_TOO_LARGE, headers=headers)
