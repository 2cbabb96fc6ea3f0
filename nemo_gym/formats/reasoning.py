"""Where an endpoint's messages keep what the model thought: in a field of their own, or in the text.

Invariant: nothing is stripped from reasoning or text, so that what is read can be written again as it was.
The one loss is white space in front of the opening tag.
"""

from typing import Any, NamedTuple, Protocol

OPEN, CLOSE = "<think>", "</think>"


class Spoken(NamedTuple):
    """What one message says, reasoning and text apart."""

    reasoning: str | None
    text: str
    is_cut: bool = False
    """Whether the reasoning never came to its end."""


class ReasoningStyle(Protocol):
    """How the chat messages of an endpoint carry reasoning."""

    def read(self, message: dict[str, Any], text: str) -> Spoken:
        """The reasoning of a message with this text, and the text without it."""

    def write(self, message: dict[str, Any], reasoning: str, *, is_cut: bool) -> None:
        """Add reasoning to a message that has its content already."""


class ReasoningField:
    """The endpoint parses reasoning out of the text: tags that are left in the text are text."""

    def read(self, message: dict[str, Any], text: str) -> Spoken:
        return Spoken(_reasoning_field(message), text)

    def write(self, message: dict[str, Any], reasoning: str, *, is_cut: bool) -> None:
        message["reasoning_content"] = reasoning


class ReasoningTags:
    """Reasoning stands in front of the text, between tags. A field of its own is read where there is one."""

    def read(self, message: dict[str, Any], text: str) -> Spoken:
        reasoning = _reasoning_field(message)
        return _split(text) if reasoning is None else Spoken(reasoning, text)

    def write(self, message: dict[str, Any], reasoning: str, *, is_cut: bool) -> None:
        content = message["content"]
        end = "" if is_cut and not content else CLOSE
        thought = f"{OPEN}{reasoning}{end}"
        if isinstance(content, list):
            message["content"] = [{"type": "text", "text": thought}, *content]
        else:
            message["content"] = thought + (content or "")


def _reasoning_field(message: dict[str, Any]) -> str | None:
    """vLLM's name for it, then the newer one; an empty text is none."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning if reasoning and isinstance(reasoning, str) else None


def split_reasoning(text: str) -> tuple[str | None, str]:
    """The reasoning at the beginning of a text, None if there is none, and the rest of the text."""
    spoken = _split(text)
    return spoken.reasoning, spoken.text


def _split(text: str) -> Spoken:
    """Templates may open the tag in the prompt, so a text that closes it first was reasoning until there.

    A tag that opens after other text is text: the model did not keep to the form, and graders look for that.
    """
    close = text.find(CLOSE)
    if close < 0 and OPEN not in text:
        return Spoken(None, text)
    if text.lstrip().startswith(OPEN):
        start = text.index(OPEN) + len(OPEN)
        if close < 0:
            return Spoken(text[start:], "", True)
        return Spoken(text[start:close], text[close + len(CLOSE) :])
    if close >= 0 and OPEN not in text[:close]:
        return Spoken(text[:close], text[close + len(CLOSE) :])
    return Spoken(None, text)
