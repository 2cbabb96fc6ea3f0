"""Counts of the tool calls of one rollout.

Invariant: bounded, although the model chooses the names: long names are cut, and calls beyond the first
`_MOST_NAMES` names are added up.
"""

from typing import Literal

Problem = Literal["failed", "unknown", "invalid"]
"""failed: the tool responded with an error. unknown: there is no such tool. invalid: the arguments are not a
JSON object, or the tool refused them with 422."""

_MOST_NAMES = 32
_LONGEST_NAME = 64
_OTHERS = "(others)"
_NO_NAME = "(no name)"


class ToolCounts(dict[str, dict[str, int]]):
    """The counts by name of the tool, as they are recorded."""

    def add(self, name: object, problem: Problem | None) -> None:
        key = name[:_LONGEST_NAME] if isinstance(name, str) and name else _NO_NAME
        counts = self.get(key)
        if counts is None:
            if len(self) >= _MOST_NAMES:
                key = _OTHERS
            counts = self.setdefault(key, {"calls": 0, "failed": 0, "unknown": 0, "invalid": 0})
        counts["calls"] += 1
        if problem is not None:
            counts[problem] += 1
