"""What running collections wait for, from their status files and from servers in other processes."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import TypeAdapter, ValidationError

from nemo_gym.codec import decode_json
from nemo_gym.endpoint_health import EndpointReport
from nemo_gym.errors import NeMoGymError
from nemo_gym.http import fetch_text, request
from nemo_gym.http.access_token import ACCESS_HEADER
from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.recording.foreign_data import (
    counts_of,
    numbers_of,
    records_of,
    tamed,
    text_of,
)
from nemo_gym.rollout_collection.recording.status_file import read_status
from nemo_gym.types import ACTIVITY_PATH

_ENDING = "_status.json"
_ASK_S = 2.0


def running_collections(output: str | None) -> list[dict[str, Any]]:
    """The status of the collection into an output; None: of all in the working directory and `results`."""
    if output is not None:
        paths: Iterable[Path] = [status_path_for(output)]
    else:
        paths = sorted([*Path().glob(f"*{_ENDING}"), *Path("results").rglob(f"*{_ENDING}")])
    found = (read_status(path) for path in paths)
    return [status for status in found if status is not None]


def with_server_activities(
    status: dict[str, Any], server_urls: Iterable[str], access_token: str | None = None
) -> dict[str, Any]:
    """The status with what servers report about its oldest rollouts. The collector sees only the agent."""
    reported: dict[str, list[dict[str, Any]]] = {}
    for url in server_urls:
        for activity in _activities(url, access_token):
            reported.setdefault(text_of(activity, "rollout"), []).append(activity)
    oldest = [
        {**one, "waits_for": _merged(one, reported.get(text_of(one, "rollout"), []))}
        for one in records_of(status, "oldest")
    ]
    return {**status, "oldest": oldest}


def _activities(url: str, access_token: str | None) -> list[dict[str, Any]]:
    try:
        content = decode_json(fetch_text(url + ACTIVITY_PATH, timeout_s=_ASK_S, access_token=access_token))
    except (NeMoGymError, ValueError, RecursionError):
        return []
    return records_of(tamed(content), "rollouts")


def _merged(own: dict[str, Any], reported: list[dict[str, Any]]) -> str:
    """What the agent waits for, with the error of a server that it calls."""
    steps = [str(one["waits_for"]) for one in reported if one.get("waits_for")]
    errors = [str(one["error"]) for one in reported if one.get("error")]
    return ", ".join([*(steps[:1] or [text_of(own, "waits_for")]), *errors[:1]])


@cache
def _endpoints() -> TypeAdapter[EndpointReport]:
    return TypeAdapter(EndpointReport)


def _endpoint(report: dict[str, Any]) -> EndpointReport | None:
    """One endpoint in the report of a server; None if the server reports something else."""
    try:
        return _endpoints().validate_python(report)
    except ValidationError:
        return None


class ServedReports:
    """What servers in other processes report about a run, requested every second."""

    def __init__(
        self,
        server_urls: Iterable[str],
        run: str,
        timeout_s: float = 1.0,
        access_token: str | None = None,
    ) -> None:
        """`timeout_s` is the time for a server to report."""
        self.urls = list(server_urls)
        self._run = run
        self._timeout_s = timeout_s
        self._headers = {ACCESS_HEADER: access_token} if access_token else None
        self.limits: dict[str, int] = {}
        """Concurrent calls allowed per endpoint, summed over all servers that responded."""
        self.endpoints: list[EndpointReport] = []
        self.waits: dict[str, float] = {}
        """How long the calls of each rollout have waited for endpoints; by the key of its activity."""

    async def ask(self) -> None:
        reports = await asyncio.gather(*(self._ask(url) for url in self.urls))
        limits: Counter[str] = Counter()
        waits: dict[str, float] = {}
        for report in reports:
            limits.update(counts_of(report, "limits"))
            for key, waited_s in numbers_of(report, "waits").items():
                waits[key] = waits.get(key, 0.0) + waited_s
        self.limits, self.waits = dict(limits), waits
        self.endpoints = [
            endpoint
            for report in reports
            for one in records_of(report, "endpoints")
            if (endpoint := _endpoint(one)) is not None
        ]

    async def _ask(self, url: str) -> dict[str, Any]:
        """The report of one server; empty if it does not respond."""
        sent = {"run": self._run, "waits": self.waits}
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await request("POST", url + ACTIVITY_PATH, json=sent, headers=self._headers)
                content = await response.json()
        except (aiohttp.ClientError, OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}
