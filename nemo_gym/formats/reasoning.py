"""Where the messages of an endpoint have reasoning: in a separate field, or in the text between tags.

Invariant: nothing is stripped from reasoning or text, so writing what was read gives the same message. The
only loss is white space before the opening tag.
"""

from typing import Any, NamedTuple, Protocol

OPEN, CLOSE = "<think>", "</think>"


class SplitText(NamedTuple):
    """The reasoning and the text of one message."""

    reasoning: str | None
    text: str
    is_truncated: bool = False
    """Whether generation stopped before the reasoning ended."""


class ReasoningStyle(Protocol):
    """How the chat messages of an endpoint contain reasoning."""

    def read(self, message: dict[str, Any], text: str) -> SplitText:
        """The reasoning of a message with this text, and the text without it."""

    def write(self, message: dict[str, Any], reasoning: str, *, is_truncated: bool) -> None:
        """Add reasoning to a message whose content is already set."""


class ReasoningField:
    """The endpoint separates reasoning from the text; tags that remain in the text are text."""

    def read(self, message: dict[str, Any], text: str) -> SplitText:
        return SplitText(_reasoning_field(message), text)

    def write(self, message: dict[str, Any], reasoning: str, *, is_truncated: bool) -> None:
        message["reasoning_content"] = reasoning


class ReasoningTags:
    """Reasoning comes before the text, between tags. A separate field is read if there is one."""

    def read(self, message: dict[str, Any], text: str) -> SplitText:
        reasoning = _reasoning_field(message)
        return _split(text) if reasoning is None else SplitText(reasoning, text)

    def write(self, message: dict[str, Any], reasoning: str, *, is_truncated: bool) -> None:
        content = message["content"]
        end = "" if is_truncated and not content else CLOSE
        thought = f"{OPEN}{reasoning}{end}"
        if isinstance(content, list):
            message["content"] = [{"type": "text", "text": thought}, *content]
        else:
            message["content"] = thought + (content or "")


def _reasoning_field(message: dict[str, Any]) -> str | None:
    """`reasoning_content` or else the newer `reasoning`; an empty string counts as None."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if reasoning and isinstance(reasoning, str) else None


def split_reasoning(text: str) -> tuple[str | None, str]:
    """The reasoning at the start of a text (None if there is none) and the rest of the text."""
    split = _split(text)
    return split.reasoning, split.text


def _split(text: str) -> SplitText:
    """Split at the tags.

    Templates may open the tag in the prompt: then everything before `</think>` is reasoning. An opening tag
    after other text is text: the model broke the format, and verifiers check for that.
    """
    close = text.find(CLOSE)
    if close < 0 and OPEN not in text:
        return SplitText(None, text)
    if text.lstrip().startswith(OPEN):
        start = text.index(OPEN) + len(OPEN)
        if close < 0:
            return SplitText(text[start:], "", True)
        return SplitText(text[start:close], text[close + len(CLOSE) :])
    if close >= 0 and OPEN not in text[:close]:
        return SplitText(text[:close], text[close + len(CLOSE) :])
    return SplitText(None, text)
