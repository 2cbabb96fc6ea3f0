"""What running collections wait for: their status files say it, and the servers where those run apart."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nemo_gym.codec import decode_json
from nemo_gym.errors import NeMoGymError
from nemo_gym.http import fetch_text
from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.status import read_status
from nemo_gym.types import ACTIVITY_PATH

_ENDING = "_status.json"
_ASK_S = 2.0


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
    return told if isinstance(told, list) else []


def _merged(own: dict[str, Any], told: list[dict[str, Any]]) -> str:
    """The agent's word on what it waits for, with the trouble that a server below it has."""
    steps = [one["waits_for"] for one in told if one.get("waits_for")]
    troubles = [one["trouble"] for one in told if one.get("trouble")]
    return ", ".join([*(steps[:1] or [own["waits_for"]]), *troubles[:1]])
