"""The tool calls of many rollouts: how many there were of each tool, and how many of them failed.

Invariant: bounded, although models choose the names: calls beyond the first `_MOST_NAMES` names are added up.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nemo_gym.types import STEPS_KEY_NAME, STOPPED_BY_KEY_NAME, TOOLS_KEY_NAME

COUNTS = ("calls", "failed", "unknown", "invalid")
"""What is counted per tool: all calls; those with an error of the tool; those of a tool that does not exist;
those with arguments that the tool refuses."""
OTHER_TOOLS = "(others)"
_MOST_NAMES = 200
_FIELDS = (STEPS_KEY_NAME, TOOLS_KEY_NAME, STOPPED_BY_KEY_NAME)

Record = Mapping[str, Any]


def tool_use_fields(record: Record) -> Record:
    """The part of a rollout that `ToolUse.take` reads."""
    return {name: record[name] for name in _FIELDS if name in record}


class ToolUse:
    """The counts of one agent's rollouts."""

    def __init__(self) -> None:
        self.by_tool: dict[str, dict[str, int]] = {}
        """Counts by tool, without tools that do not exist."""
        self.unknown_calls = 0
        """Calls of tools that do not exist."""
        self.rollouts = 0
        """Rollouts that say how many steps they took."""
        self.steps = 0
        self.stopped: dict[str, int] = {}
        """How many rollouts the agent ended, by its reason, such as `max_steps`."""

    def take(self, record: Record) -> None:
        """Add one rollout. What is not in the form that agents write is left out."""
        steps = record.get(STEPS_KEY_NAME)
        if isinstance(steps, int):
            self.rollouts += 1
            self.steps += steps
        reason = record.get(STOPPED_BY_KEY_NAME)
        if isinstance(reason, str):
            _add(self.stopped, reason, 1)
        tools = record.get(TOOLS_KEY_NAME)
        for name, counts in tools.items() if isinstance(tools, dict) else ():
            if isinstance(counts, dict):
                self._add_tool(name, counts)

    def take_many(self, records: Sequence[Record]) -> None:
        """Add rollouts that have the same fields."""
        if STEPS_KEY_NAME in records[0] or TOOLS_KEY_NAME in records[0]:
            for record in records:
                self.take(record)

    def extend(self, other: "ToolUse") -> None:
        """Add the counts of other rollouts."""
        self.rollouts += other.rollouts
        self.steps += other.steps
        self.unknown_calls += other.unknown_calls
        for reason, count in other.stopped.items():
            _add(self.stopped, reason, count)
        for name, counts in other.by_tool.items():
            self._add_tool(name, counts)

    def _add_tool(self, name: str, counts: Mapping[str, Any]) -> None:
        numbers = {key: _count(counts.get(key)) for key in COUNTS}
        self.unknown_calls += numbers["unknown"]
        numbers["calls"] -= numbers["unknown"]
        if numbers["calls"] <= 0:
            return
        if name not in self.by_tool and len(self.by_tool) >= _MOST_NAMES:
            name = OTHER_TOOLS
        known = self.by_tool.setdefault(name, {"calls": 0, "failed": 0, "invalid": 0})
        for key in known:
            known[key] += numbers[key]

    def metrics(self) -> dict[str, float]:
        """`steps/…` and `tools/<name>/…`; empty if no rollout has such counts."""
        found: dict[str, float] = {}
        if self.rollouts:
            found["steps/mean"] = self.steps / self.rollouts
            found |= {f"steps/stopped_by/{reason}": count for reason, count in self.stopped.items()}
        for name, counts in self.by_tool.items():
            found |= {f"tools/{name}/{key}": value for key, value in counts.items()}
        if self.unknown_calls:
            found["unknown_tools/calls"] = self.unknown_calls
        return found

    def feed(self, take: Callable[[bytes], object]) -> None:
        """Pass the content to a function such as the `update` of a digest."""
        take(repr(sorted(self.metrics().items())).encode("utf-8", "surrogatepass"))


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _add(counts: dict[str, int], name: str, number: int) -> None:
    if name in counts or len(counts) < _MOST_NAMES:
        counts[name] = counts.get(name, 0) + number
