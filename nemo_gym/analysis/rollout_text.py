"""A rollout as text: its conversation, its numbers, and why it failed.

Everything in a record comes from models, tools and endpoints, so no character of it reaches the terminal
unescaped. Long texts are shortened unless `Reader.is_full`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from nemo_gym.analysis.transcript import Item, output_items, prompt_items
from nemo_gym.codec import encode_json
from nemo_gym.failures import declared_kind
from nemo_gym.metrics import numeric_fields
from nemo_gym.metrics.tool_use import ToolUse
from nemo_gym.records import Record, agent_of, key_of
from nemo_gym.rollout_collection.recording.causes import cause_of
from nemo_gym.terminal import counted, one_line, safe_text
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    STEPS_KEY_NAME,
    STOPPED_BY_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    TOOLS_KEY_NAME,
)

_INDENT = "  "
_MOST_LINES = 8
_MOST_CHARACTERS = 800
_MOST_PROMPT_ITEMS = 3
_LONGEST_FIELD = 60
_TOKENS = ("input_tokens", "output_tokens", "total_tokens")
_NOT_A_FIELD = frozenset(
    {
        AGENT_REF_KEY_NAME,
        ATTEMPT_INDEX_KEY_NAME,
        RESPONSE_KEY_NAME,
        RESPONSES_CREATE_PARAMS_KEY_NAME,
        ROLLOUT_INDEX_KEY_NAME,
        TASK_INDEX_KEY_NAME,
        "output",
        "reward",
        STEPS_KEY_NAME,
        STOPPED_BY_KEY_NAME,
        TOOLS_KEY_NAME,
        *_TOKENS,
    }
)
_FULL_HINT = "--full shows all"


@dataclass(frozen=True)
class Reader:
    """How rollouts are shown."""

    columns: int = 120
    is_full: bool = False

    def rollout(self, record: Record) -> Iterator[str]:
        """The lines of a rollout."""
        yield _title(record)
        yield from self._conversation(prompt_items(record), output_items(record))
        yield from self._wrapped(_numbers(record))
        if steps := _steps(record):
            yield from self._wrapped(steps)
        if fields := _fields(record):
            yield from self._wrapped(fields)

    def failure(self, record: Record, row: Record | None) -> Iterator[str]:
        """The lines of a failed rollout; `row` is its materialized input, if known."""
        yield _title(record)
        if row is not None:
            yield from self._conversation(prompt_items(row), [])
        kind, message = record.get(NG_FAILURE_CLASS_KEY), str(record.get("error_message") or "")
        attempts = record.get("attempts")
        times = counted(attempts, "attempt") if isinstance(attempts, int) else "an unknown number of attempts"
        yield from self._wrapped(one_line(f"failed after {times} at {record.get('time')}"))
        cause = cause_of(declared_kind(kind), str(record.get("error_type", "")), message)
        yield from self._wrapped(str(cause))
        if self.is_full:
            yield from self._item("complete message: ", message)

    def _conversation(self, prompt: list[Item], output: list[Item]) -> Iterator[str]:
        output = output[len(prompt) :] if prompt and output[: len(prompt)] == prompt else output
        shown = prompt
        if not self.is_full and len(prompt) > _MOST_PROMPT_ITEMS:
            has_system = prompt[0].role in ("system", "developer")
            shown = [prompt[0], prompt[-1]] if has_system else [prompt[-1]]
        for place, item in enumerate(shown):
            if place == len(shown) - 1 and len(shown) < len(prompt):
                yield f"{_INDENT}… {len(prompt) - len(shown)} more messages in the prompt; {_FULL_HINT}"
            yield from self._item(*_described(item))
        for item in output:
            yield from self._item(*_described(item))

    def _item(self, label: str, text: str) -> Iterator[str]:
        """A labelled text; its further lines are indented."""
        lines = safe_text(text).expandtabs(4).splitlines()
        shown, left_out = (lines, 0) if self.is_full else _shortened(lines)
        first, *rest = shown or [""]
        yield from self._wrapped(f"{label}{first}")
        for line in rest:
            yield from self._wrapped(line, _INDENT * 3)
        if left_out:
            yield f"{_INDENT * 3}… {left_out:,} more characters; {_FULL_HINT}"

    def _wrapped(self, text: str, indent: str = _INDENT) -> Iterator[str]:
        lines = wrap(
            text,
            max(self.columns, 20),
            initial_indent=indent,
            subsequent_indent=_INDENT * 3,
            replace_whitespace=False,
            drop_whitespace=True,
            break_on_hyphens=False,
        )
        yield from lines or [indent.rstrip()]


def _title(record: Record) -> str:
    key, agent = key_of(record), agent_of(record)
    of_agent = f" of {one_line(agent)}" if agent else ""
    attempt = record.get(ATTEMPT_INDEX_KEY_NAME)
    retried = f" (attempt {attempt + 1})" if isinstance(attempt, int) and attempt else ""
    return f"rollout {key or 'without a key'}{of_agent}{retried}"


def _described(item: Item) -> tuple[str, str]:
    """Who speaks, and what is said."""
    text, name = item.text or "", one_line(item.name or "?")
    match item.type:
        case "message":
            speaker = "model" if item.role == "assistant" else one_line(item.role or "?")
            return f"{speaker}: ", text
        case "reasoning":
            return "model thinks: ", text
        case "function_call":
            return f"model calls {name}(", f"{item.arguments or ''})"
        case "function_call_output":
            return "tool returns ", text
    return f"({one_line(item.type)}) ", text


def _shortened(lines: list[str]) -> tuple[list[str], int]:
    """The first lines, and how many characters are left out."""
    shown: list[str] = []
    room = _MOST_CHARACTERS
    for line in lines[:_MOST_LINES]:
        shown.append(line[:room])
        room -= len(shown[-1])
        if room <= 0:
            break
    return shown, sum(map(len, lines)) - sum(map(len, shown))


def _numbers(record: Record) -> str:
    """`reward 1, used_calculator 1; tokens 700 in, 20 out`."""
    numbers = numeric_fields(record)
    tokens = {name: numbers.pop(name, None) for name in _TOKENS}
    reward = numbers.pop("reward", None)
    parts = [f"reward {reward:.4g}" if reward is not None else "no reward"]
    parts += [one_line(f"{name} {value:.6g}") for name, value in numbers.items()]
    text = ", ".join(parts)
    counts = [
        f"{tokens[name]:,.0f} {way}"
        for name, way in zip(_TOKENS, ("in", "out"), strict=False)
        if tokens[name] is not None
    ]
    return f"{text}; tokens {', '.join(counts)}" if counts else text


def _steps(record: Record) -> str:
    """Why the agent ended the episode, and which tools failed: `calculator 3 calls, 1 failed`."""
    used = ToolUse()
    used.take(record)
    parts = [f"ended at {one_line(reason)}" for reason in used.stopped]
    for name, counts in used.by_tool.items():
        problems = [f"{counts[kind]:,} {kind}" for kind in ("failed", "invalid") if counts[kind]]
        if problems:
            parts.append(", ".join([f"{one_line(name)} {counted(counts['calls'], 'call')}", *problems]))
    if used.unknown_calls:
        parts.append(f"{counted(used.unknown_calls, 'call')} of unknown tools")
    return "; ".join(parts)


def _fields(record: Record) -> str:
    """Other fields, each short or shortened: `expected_answer 42`."""
    parts = []
    for name, value in record.items():
        if (
            name in _NOT_A_FIELD
            or value is None
            or (isinstance(value, int | float) and not name.startswith("_ng_"))
        ):
            continue
        text = value if isinstance(value, str) else _json(value)
        line = one_line(text)
        parts.append(f"{one_line(name)}: {line[:_LONGEST_FIELD]}{'…' if len(line) > _LONGEST_FIELD else ''}")
    return "; ".join(parts)


def _json(value: Any) -> str:
    try:
        return encode_json(value).decode()
    except RecursionError:
        return "[nested too deeply to show]"
