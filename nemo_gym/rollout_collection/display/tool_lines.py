"""What the end of a run shows of the agents' tool calls."""

from nemo_gym.metrics.tool_use import ToolUse
from nemo_gym.terminal import one_line
from nemo_gym.text_fit import shortened

_MOST_TOOLS = 5
_LONGEST_NAME = 30
_PROBLEMS = ("failed", "invalid")


def tool_lines(used: ToolUse) -> list[str]:
    """The calls of the most used tools, and how many rollouts reached a limit; empty if there is neither."""
    by_calls = sorted(used.by_tool.items(), key=lambda one: -one[1]["calls"])
    parts = [_of_tool(name, counts) for name, counts in by_calls[:_MOST_TOOLS]]
    if rest := [counts["calls"] for _, counts in by_calls[_MOST_TOOLS:]]:
        parts.append(f"{_counted(len(rest), 'more tool')} {_counted(sum(rest), 'call')}")
    if used.unknown_calls:
        parts.append(f"{_counted(used.unknown_calls, 'call')} of unknown tools")
    lines = [f"tools: {'; '.join(parts)}"] if parts else []
    return lines + [
        f"{_counted(count, 'rollout')} of {used.rollouts:,} ended at {one_line(reason)}"
        for reason, count in used.stopped.items()
    ]


def _of_tool(name: str, counts: dict[str, int]) -> str:
    problems = [f"{counts[kind]:,} {kind}" for kind in _PROBLEMS if counts[kind]]
    text = f"{shortened(one_line(name), _LONGEST_NAME)} {_counted(counts['calls'], 'call')}"
    return ", ".join([text, *problems])


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
