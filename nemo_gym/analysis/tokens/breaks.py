"""Breaks: prompts that do not continue the tokens of the previous turn, and the likely cause.

Invariant: a cause is inferred from the file alone. Every break has exactly one cause: the first in `_CHECKS`
that applies, or `unknown`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from nemo_gym.analysis.tokens.texts import Pieces, Vocabulary

Cause = Literal[
    "retokenised",
    "reasoning_stripped",
    "tool_call_rewritten",
    "whitespace",
    "template",
    "history_shorter",
    "prompt_changed",
    "message_changed",
    "unknown",
]

CAUSES: dict[Cause, str] = {
    "retokenised": "same text, different tokens: the history was tokenised again from text",
    "reasoning_stripped": "the generated reasoning is missing from the history",
    "tool_call_rewritten": "a function call differs in the history: its JSON was serialised again",
    "whitespace": "the generation and the history differ only in whitespace",
    "template": "the end of a generation differs, for example a different or missing end-of-turn token",
    "history_shorter": "part of the history is missing: dropped, or cut to fit the context",
    "prompt_changed": "the first prompt differs: system prompt, tools, or a date in the template",
    "message_changed": "a later user or tool message differs from what the model saw",
    "unknown": "no known cause applies",
}
"""Description of each cause."""

Parts = TypeVar("Parts", bytes, str)

RECORDED_TEXTS = "prompt_str and generation_str of the rollout"
_CLOSERS = ("</think>", "</thinking>", "</reasoning>", "[/THINK]")
_MARKUP = re.compile(r"<\|[^<>|]{1,40}\|>|<\uff5c[^<>]{1,40}\uff5c>|</s>|<eos>|<end_of_turn>")
"""End-of-turn markers of most templates, for texts without a vocabulary that lists the special tokens."""
_CALL_OPENERS = ("<tool_call>", "<function_call>", "[TOOL_CALLS]", "<|python_tag|>")
_NEAR = 16
"""Longest generation prompt in tokens: a difference this close before a generation belongs to it."""
_MOST_TOKENS = 2048
"""Tokens to compare if the end of a difference is unknown."""
_MORE_TOKENS = 64
_SURE_MATCH, _LEAST_MATCH = 8, 2
"""Equal tokens in a row that identify a position: anywhere, and within one generation."""
_TAIL_CHARACTERS = 24


@dataclass(frozen=True)
class Span:
    """A part of the history that does not come from a message of the prompt."""

    start: int
    end: int
    items: Sequence[Any] | None
    """The output items generated in this span; None if an earlier break makes it unknown."""

    def has(self, kind: str) -> bool:
        return any(isinstance(item, dict) and item.get("type") == kind for item in self.items or ())


@dataclass
class History:
    """Everything the model had read and generated after a turn."""

    seen: list[int]
    first_prompt: int
    """Length of the prompt of the first turn."""
    spans: list[Span] = field(default_factory=list)
    """In order."""
    prompt_text: str | None = None
    """Prompt of the last turn, if the rollout has it."""
    generation_text: str | None = None

    @property
    def text(self) -> str | None:
        """The whole history as text; None if a part is missing."""
        if self.prompt_text is None or self.generation_text is None:
            return None
        return self.prompt_text + self.generation_text


def first_difference(a: Parts, b: Parts) -> int:
    """The first position at which two sequences differ, or the length of the shorter one."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Mismatch:
    """A prompt that does not start with the history."""

    def __init__(
        self,
        history: History,
        prompt: list[int],
        at: int,
        vocabulary: Vocabulary | None = None,
        prompt_text: str | None = None,
    ) -> None:
        self.history, self.seen, self.prompt, self.vocabulary = history, history.seen, prompt, vocabulary
        self.at = at
        """The first position that differs; the length of the prompt if the history starts with it."""
        self.generation = next((s for s in history.spans if s.items is not None and self._concerns(s)), None)
        """The generation that contains the difference or comes just after it."""
        self.end = self.generation.end if self.generation else min(len(self.seen), self.at + _MOST_TOKENS)
        """The history is compared up to here."""
        self.has_same_text = False
        """Whether the differing tokens decode to the same text."""
        self.source: str | None = None
        """Where the texts come from."""
        self.before: str | None = None
        """The text just before the difference."""
        self.seen_rest: str | None = None
        """The text from the difference to `end`."""
        self.prompt_rest: str | None = None
        self.said_before: str | None = None
        """The text of the generation up to the difference."""
        self.keeps_prompt = False
        """Whether the text before the generation is known to be unchanged. Its last token may have merged
        with the text after it."""
        if vocabulary is not None:
            self._take_pieces(vocabulary)
        if self.seen_rest is None and (seen_text := history.text) is not None and prompt_text is not None:
            self._take_texts(seen_text, prompt_text)

    def _concerns(self, span: Span) -> bool:
        return span.start - _NEAR <= self.at < span.end

    def _take_pieces(self, vocabulary: Vocabulary) -> None:
        at, end = self.at, self.end
        start = self.generation.start if self.generation else at
        self.source = vocabulary.source
        self.before = vocabulary.text(self.seen[max(0, at - _NEAR) : at])
        self.seen_rest = vocabulary.text(self.seen[at:end])
        self.prompt_rest = vocabulary.text(self.prompt[at : end + _MORE_TOKENS])
        self.said_before = vocabulary.text(self.seen[start:at])
        prompt_end = vocabulary.text(self.seen[at:start])
        if prompt_end is not None and self.prompt_rest is not None:
            self.keeps_prompt = self.prompt_rest.startswith(prompt_end)
        stop = at + _MOST_TOKENS
        self.has_same_text = _is_same_text(
            vocabulary.known_pieces(self.seen[at:stop]), vocabulary.known_pieces(self.prompt[at:stop])
        )

    def _take_texts(self, seen: str, prompt: str) -> None:
        at = first_difference(seen, prompt)
        self.has_same_text = at == len(seen)
        self.source, self.before = RECORDED_TEXTS, seen[max(0, at - _MORE_TOKENS) : at]
        self.seen_rest = seen[at:]
        self.prompt_rest = prompt[at : at + len(self.seen_rest) + 4 * _MORE_TOKENS]
        start = min(at, len(self.history.prompt_text or ""))
        self.said_before = seen[start:at]
        is_last = self.generation is not None and self.generation is self.history.spans[-1]
        self.keeps_prompt = is_last and at >= len(self.history.prompt_text or "")

    def cause(self) -> Cause:
        return next((cause for cause, holds in _CHECKS if holds(self)), "unknown")


def _is_same_text(seen: Pieces, prompt: Pieces) -> bool:
    """Whether both start with the same bytes, up to a position where a token ends in both."""
    left, right = bytearray(), bytearray()
    rest_left, rest_right = iter(seen.pieces), iter(prompt.pieces)
    while True:
        is_left = len(left) <= len(right)
        piece = next(rest_left if is_left else rest_right, None)
        if piece is None:  # the whole history may be in the prompt, its last token merged with what follows
            return is_left and seen.are_all and len(left) > 0
        (left if is_left else right).extend(piece)
        shorter = min(len(left), len(right))
        if left[:shorter] != right[:shorter]:
            return False
        if len(left) == len(right) > 0:
            return True


def _ends_early(mismatch: Mismatch) -> bool:
    return mismatch.at == len(mismatch.prompt)


def _is_reasoning_stripped(mismatch: Mismatch) -> bool:
    generation, seen, prompt = mismatch.generation, mismatch.seen_rest, mismatch.prompt_rest
    if generation is None:
        return False
    if seen is not None and prompt is not None:
        closer = next((closer for closer in _CLOSERS if closer in seen), None)
        if closer is not None:
            tail = seen.partition(closer)[2].strip()[:_TAIL_CHARACTERS]
            goes_on_after = bool(tail) and prompt.lstrip().startswith(tail)
            return goes_on_after or closer not in prompt[: len(seen)]
    resumed = _resumes(mismatch, generation.end, _LEAST_MATCH)
    return generation.has("reasoning") and resumed is not None and resumed > generation.start


def _is_at_end(mismatch: Mismatch) -> bool:
    """Whether only markup and whitespace was generated after the difference."""
    generation, vocabulary, at = mismatch.generation, mismatch.vocabulary, mismatch.at
    if generation is None or _changes_first_prompt(mismatch):
        return False
    if mismatch.seen_rest is None:
        last = generation.end - 1
        return at == last or (at >= last - 2 and mismatch.prompt[at] == mismatch.seen[last])
    rest: str | None = mismatch.seen_rest
    if vocabulary is not None and vocabulary.special:
        plain = [number for number in mismatch.seen[at : generation.end] if number not in vocabulary.special]
        rest = vocabulary.text(plain)
    return not _MARKUP.sub("", mismatch.seen_rest if rest is None else rest).strip()


def _is_whitespace(mismatch: Mismatch) -> bool:
    if mismatch.generation is None or _changes_first_prompt(mismatch):
        return False
    if mismatch.seen_rest is None or mismatch.prompt_rest is None:
        return False
    return "".join(mismatch.prompt_rest.split()).startswith("".join(mismatch.seen_rest.split()))


def _is_call(mismatch: Mismatch) -> bool:
    """Whether the difference is inside a function call."""
    generation, before = mismatch.generation, mismatch.said_before
    if generation is None or mismatch.at < generation.start or not generation.has("function_call"):
        return False
    if before is None or mismatch.seen_rest is None:
        return not (generation.has("message") or generation.has("reasoning"))
    said = before + mismatch.seen_rest
    calls = [item for item in generation.items or () if item.get("type") == "function_call"]
    signs = [*_CALL_OPENERS, *(str(call.get("name")) for call in calls)]
    starts = [place for sign in signs if (place := said.find(sign)) >= 0]
    return not starts or len(before) >= min(starts)


def _drops_history(mismatch: Mismatch) -> bool:
    resumed = _resumes(mismatch, len(mismatch.seen), _SURE_MATCH)
    if resumed is None:
        return len(mismatch.prompt) < len(mismatch.seen)
    return any(mismatch.at <= span.start < resumed for span in mismatch.history.spans)


def _resumes(mismatch: Mismatch, end: int, least: int) -> int | None:
    """The position in the history, after the difference, at which the prompt continues."""
    seen, at = mismatch.seen, mismatch.at
    wanted = mismatch.prompt[at : at + _SURE_MATCH]
    place = at
    while wanted:
        try:
            place = seen.index(wanted[0], place + 1, end)
        except ValueError:
            return None
        size = min(len(wanted), end - place)
        if size >= least and seen[place : place + size] == wanted[:size]:
            return place
    return None


def _is_in_first_prompt(mismatch: Mismatch) -> bool:
    return mismatch.at < mismatch.history.first_prompt


def _changes_first_prompt(mismatch: Mismatch) -> bool:
    """Whether the difference is in the first prompt, not in the generation just after it."""
    return _is_in_first_prompt(mismatch) and not mismatch.keeps_prompt


def _is_in_message(mismatch: Mismatch) -> bool:
    return not any(span.start <= mismatch.at < span.end for span in mismatch.history.spans)


_CHECKS: list[tuple[Cause, Callable[[Mismatch], bool]]] = [
    ("retokenised", lambda mismatch: mismatch.has_same_text),
    ("history_shorter", _ends_early),
    ("reasoning_stripped", _is_reasoning_stripped),
    ("whitespace", lambda mismatch: _is_at_end(mismatch) and _is_whitespace(mismatch)),
    ("template", _is_at_end),
    ("tool_call_rewritten", _is_call),
    ("whitespace", _is_whitespace),
    ("history_shorter", _drops_history),
    ("prompt_changed", _is_in_first_prompt),
    ("message_changed", _is_in_message),
]
