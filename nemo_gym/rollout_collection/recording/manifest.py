"""The manifest: the identity of a run, for resuming it and for looking it up later."""

import json
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nemo_gym
from nemo_gym.codec import decode_json
from nemo_gym.config import MASK, mask_secrets, redact
from nemo_gym.config.instances import instance_names
from nemo_gym.config.plain_data import plain_data
from nemo_gym.config.secrets import is_secret_path
from nemo_gym.journal import write_whole
from nemo_gym.records import Key, packed, unpacked

_ADDRESSES = {"host", "port", "worker_ports", "num_workers", "datasets"}
"""Settings of a server that cannot change results."""
_ENDPOINTS = {"max_concurrent_requests"}
"""Settings of an endpoint that cannot change results, besides its address and key."""

WORKER_DEATHS = "worker_deaths"
"""The key of the rollouts whose workers died, each with the number of deaths."""
_MOST_BYTES = 64 << 20
"""The size of a file that can be a manifest: each agent and each setting takes less than 1 KB."""
_DEEPEST = 50
_MOST_ROLLOUTS = 1 << 62
ACCEPTED = "accepted_rollouts"
"""The key of the number of rollouts that the user has accepted although the plan does not have them."""
OUTPUT_STATE = "output"
"""The key of the state of the output at the end of the run."""
METRICS_WRITTEN = "aggregate_metrics"
"""The key of the fingerprint that says whether the metrics file is up to date."""


def output_state(output: Path) -> str:
    """A text that changes when another program writes to the output or replaces it."""
    about = output.stat()
    return f"size:{about.st_size} mtime_ns:{about.st_mtime_ns} inode:{about.st_ino}"


def server_settings(values: Mapping[str, Any], *, with_endpoints: bool = False) -> dict[str, Any]:
    """The settings of all servers that can change results, by dotted key, secrets hidden.

    The address and the key of a model endpoint cannot change results, if it serves the same model.
    """
    servers = {name: values[name] for name in instance_names(values)}
    masked = mask_secrets(plain_data(servers))
    return {
        key: value
        for key, value in flattened(masked)
        if _ADDRESSES.isdisjoint(key.split(".")) and (with_endpoints or not _is_of_endpoint(key))
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line per setting that has changed."""
    return [
        f"{key}: was {was}, is {is_now}"
        for key in [*before, *(key for key in now if key not in before)]
        if before.get(key, _MISSING) != now.get(key, _MISSING)
        for was, is_now in [_cut(_shown(before, key), _shown(now, key))]
    ]


_TYPES: dict[str, type | tuple[type, ...]] = {
    "started_at": str,
    "servers": dict,
    ACCEPTED: int,
    METRICS_WRITTEN: (str, type(None)),
    WORKER_DEATHS: dict,
}
_INPUTS = ("sha256", "rollouts", "by_agent", "recipe")
_MISSING = object()
_LONGEST = 80
_KEY = re.compile(r"\d{1,9}:\d{1,9}")


def _shown(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "not set"
    return MASK if is_secret_path(key) else redact(repr(values[key]))


def _cut(*texts: str) -> list[str]:
    """The part of long texts in which they differ."""
    same = next((place for place, pair in enumerate(zip(*texts, strict=False)) if len({*pair}) > 1), 0)
    start = max(0, same - _LONGEST // 4) if max(map(len, texts)) > _LONGEST else 0
    end = start + _LONGEST
    return [("…" if start else "") + text[start:end] + ("…" if len(text) > end else "") for text in texts]


def flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested mappings with its dotted key."""
    if isinstance(value, Mapping) and (value or not prefix):
        for key, item in value.items():
            yield from flattened(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


@dataclass
class Manifest:
    """`<stem>_manifest.json`."""

    path: Path
    data: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> "Manifest | None":
        """The manifest of an earlier run; None if it does not exist or cannot be used.

        Entries of the wrong type are left out: users may have edited the file.
        """
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                return None
            data = decode_json(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(data, dict) or not _is_shallow(data, _DEEPEST):
            return None
        return cls(path, {key: value for key, value in data.items() if _is_right(key, value)})

    @classmethod
    def new(cls, path: Path, collection: dict[str, Any], values: Mapping[str, Any]) -> "Manifest":
        return cls(
            path.absolute(),  # an environment may change the working directory
            {
                "versions": {"nemo_gym": nemo_gym.__version__, "python": platform.python_version()},
                "started_at": _now(),
                "resumed_at": [],
                "collection": mask_secrets(collection),
                "servers": server_settings(values, with_endpoints=True),
            },
        )

    def resumed(self, earlier: "Manifest | None") -> "Manifest":
        """The same, for a run that continues an earlier one."""
        before = earlier.data if earlier is not None else {}
        kept = ("started_at", METRICS_WRITTEN, WORKER_DEATHS)
        self.data |= {key: before[key] for key in kept if key in before}
        self.data["resumed_at"] = [*before.get("resumed_at", ()), _now()]
        return self

    def changed_servers(self, values: Mapping[str, Any]) -> list[str]:
        """The differences between the servers of that run and these."""
        before = self.data.get("servers")
        if not isinstance(before, dict):
            return []
        relevant = {key: value for key, value in before.items() if not _is_of_endpoint(key)}
        return differences(relevant, json.loads(_json_text(server_settings(values))))

    def planned_by_agent(self) -> dict[str, int]:
        """Planned rollouts per agent; empty if that is not known."""
        by_agent = self.data.get("materialized_inputs", {}).get("by_agent")
        is_right = isinstance(by_agent, dict) and all(map(_is_count, by_agent.values()))
        return dict(by_agent) if is_right else {}

    def inputs(self) -> dict[str, Any] | None:
        """What the manifest says about the plan; None if that is incomplete or contradicts itself."""
        inputs: dict[str, Any] = self.data.get("materialized_inputs", {})
        is_right = (
            isinstance(inputs.get("sha256"), str)
            and isinstance(inputs.get("recipe"), dict)
            and _is_count(inputs.get("rollouts"))
            and sum(self.planned_by_agent().values()) == inputs["rollouts"]
        )
        return {key: inputs[key] for key in _INPUTS} if is_right else None

    def num_accepted(self) -> int:
        """Rollouts in the output that do not belong to the plan, which the user has accepted."""
        number: int = self.data.get(ACCEPTED, 0)
        return number

    def worker_deaths(self) -> dict[int, int]:
        """The packed keys of rollouts whose workers died, with the deaths in all runs."""
        deaths = self.data.get(WORKER_DEATHS)
        found = deaths.items() if isinstance(deaths, dict) else ()
        return {
            packed(Key(*map(int, key.split(":")))): number
            for key, number in found
            if _KEY.fullmatch(key) and type(number) is int and number > 0
        }

    def note_worker_deaths(self, deaths: Mapping[Key, int]) -> None:
        """Save that workers died while they played these rollouts, so that a resumed run plays them last."""
        earlier = {str(unpacked(key)): number for key, number in self.worker_deaths().items()}
        self.save(**{WORKER_DEATHS: earlier | {str(key): number for key, number in deaths.items()}})

    def save(self, **entries: Any) -> None:
        self.data |= entries
        write_whole(self.path, [_json_text(self.data).encode("utf-8", "replace"), b"\n"])


def _is_right(key: str, value: Any) -> bool:
    """Whether an entry has the type that this program writes."""
    if key == "materialized_inputs":
        return isinstance(value, dict)
    if key == "resumed_at":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, _TYPES.get(key, object)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_ROLLOUTS


def _is_shallow(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or (depth > 0 and all(_is_shallow(one, depth - 1) for one in value))


def _is_of_endpoint(key: str) -> bool:
    name = key.rpartition(".")[2]
    return name in _ENDPOINTS or name.endswith("base_url") or is_secret_path(key)


def _json_text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, default=str)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
