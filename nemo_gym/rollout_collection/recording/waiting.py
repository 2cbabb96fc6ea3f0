"""What running collections wait for: their status files say it, and the servers where those run apart."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp

from nemo_gym.codec import decode_json
from nemo_gym.errors import NeMoGymError
from nemo_gym.http import fetch_text, request
from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.recording.status_file import read_status
from nemo_gym.types import ACTIVITY_PATH

_ENDING = "_status.json"
_ASK_S = 2.0
_LIMITS_S = 1.0
"""How long a server may take to tell its limits: they are asked for every second."""


def running_collections(output: str | None) -> list[dict[str, Any]]:
    """The status of the collection into an output; None: of all below the working directory's results."""
    if output is not None:
        paths: Iterable[Path] = [status_path_for(output)]
    else:
        paths = sorted([*Path().glob(f"*{_ENDING}"), *Path("results").rglob(f"*{_ENDING}")])
    found = (read_status(path) for path in paths)
    return [status for status in found if status is not None]


def with_server_activities(status: dict[str, Any], server_urls: Iterable[str]) -> dict[str, Any]:
    """The status with what the servers say of its oldest rollouts: the collector sees only the agent."""
    told: dict[str, list[dict[str, Any]]] = {}
    for url in server_urls:
        for activity in _activities(url):
            told.setdefault(activity["rollout"], []).append(activity)
    oldest = [{**one, "waits_for": _merged(one, told.get(one["rollout"], []))} for one in status["oldest"]]
    return {**status, "oldest": oldest}


def _activities(url: str) -> list[dict[str, Any]]:
    try:
        told = decode_json(fetch_text(url + ACTIVITY_PATH, timeout_s=_ASK_S))
    except (NeMoGymError, ValueError):
        return []
    rollouts: list[dict[str, Any]] = told.get("rollouts", []) if isinstance(told, dict) else []
    return rollouts


def _merged(own: dict[str, Any], told: list[dict[str, Any]]) -> str:
    """The agent's word on what it waits for, with the trouble that a server below it has."""
    steps = [one["waits_for"] for one in told if one.get("waits_for")]
    errors = [one["error"] for one in told if one.get("error")]
    return ", ".join([*(steps[:1] or [own["waits_for"]]), *errors[:1]])


class ServedLimits:
    """How many calls each endpoint gets at once from servers that run apart, as these last told it."""

    def __init__(self, server_urls: Iterable[str]) -> None:
        self._urls = list(server_urls)
        self.latest: dict[str, int] = {}
        """By endpoint, over all servers that answered."""

    async def ask(self) -> None:
        latest: Counter[str] = Counter()
        for limits in await asyncio.gather(*map(_limits, self._urls)):
            latest.update(limits)
        self.latest = dict(latest)


async def _limits(url: str) -> dict[str, int]:
    try:
        async with asyncio.timeout(_LIMITS_S):
            told = await (await request("GET", url + ACTIVITY_PATH)).json()
    except (aiohttp.ClientError, OSError, ValueError):
        return {}
    limits: dict[str, int] = told.get("limits", {}) if isinstance(told, dict) else {}
    return limits
