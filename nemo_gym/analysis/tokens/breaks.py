"""Where a prompt does not go on with the tokens of the turn before it, and why that is likely so.

Invariant: a cause is a guess from what is in the file. Every break gets exactly one, the first in `_CHECKS`
that holds; what fits none is `unknown`.
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
    "retokenised": "the text is the same, its tokens are others: the history was tokenised again from text",
    "reasoning_stripped": "the reasoning that was generated is missing from the history",
    "tool_call_rewritten": "a function call stands differently in the history: its JSON was written anew",
    "whitespace": "what was generated and the history differ in whitespace only",
    "template": "the end of a generation differs, such as another or no end-of-turn token",
    "history_shorter": "a part of the history is gone: it was dropped, or cut to fit the context",
    "prompt_changed": "the first prompt differs: system prompt or tools, or a date in the template",
    "message_changed": "a later message of a user or a tool stands differently than when the model saw it",
    "unknown": "none of the known causes fits",
}
"""Each in one sentence."""

Parts = TypeVar("Parts", bytes, str)

RECORDED_TEXTS = "prompt_str and generation_str of the rollout"
_CLOSERS = ("</think>", "</thinking>", "</reasoning>", "[/THINK]")
_MARKUP = re.compile(r"<\|[^<>|]{1,40}\|>|<\uff5c[^<>]{1,40}\uff5c>|</s>|<eos>|<end_of_turn>")
"""What ends a turn in most templates, for texts without a vocabulary that says which tokens are special."""
_CALL_OPENERS = ("<tool_call>", "<function_call>", "[TOOL_CALLS]", "<|python_tag|>")
_NEAR = 16
"""A generation prompt is at most so long: a difference this near before a generation belongs to it."""
_MOST_TOKENS = 2048
"""So many are looked at where the end of a difference is not known."""
_MORE_TOKENS = 64
_SURE_MATCH, _LEAST_MATCH = 8, 2
"""So many tokens in a row are the same place of a conversation: anywhere, and within one generation."""
_TAIL_CHARACTERS = 24


@dataclass(frozen=True)
class Span:
    """A stretch of what was seen whose origin is not a message of the prompt."""

    start: int
    end: int
    items: Sequence[Any] | None
    """The output items that the model made with it; None where earlier breaks hide what it is."""

    def has(self, kind: str) -> bool:
        return any(isinstance(item, dict) and item.get("type") == kind for item in self.items or ())


@dataclass
class History:
    """What the model had seen and said after a turn."""

    seen: list[int]
    first_prompt: int
    """The length of the prompt of the first turn."""
    spans: list[Span] = field(default_factory=list)
    """In their order."""
    prompt_text: str | None = None
    """Of the last turn, where the rollout holds it."""
    generation_text: str | None = None

    @property
    def text(self) -> str | None:
        """All that was seen; None where a part of it is not at hand."""
        if self.prompt_text is None or self.generation_text is None:
            return None
        return self.prompt_text + self.generation_text


def first_difference(a: Parts, b: Parts) -> int:
    """The first position at which two differ; the length of the shorter if it begins the longer."""
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
    """A prompt that does not begin with what was seen before it."""

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
        """The first position that differs; the length of the prompt if what was seen begins with it."""
        self.generation = next((s for s in history.spans if s.items is not None and self._concerns(s)), None)
        """The generation that the difference lies in, or just before."""
        self.end = self.generation.end if self.generation else min(len(self.seen), self.at + _MOST_TOKENS)
        """Up to here what was seen is compared."""
        self.has_same_text = False
        """Whether the differing tokens stand for the same text."""
        self.source: str | None = None
        """Of the texts."""
        self.before: str | None = None
        """The text just before the difference."""
        self.seen_rest: str | None = None
        """The text from the difference to `end`."""
        self.prompt_rest: str | None = None
        self.said_before: str | None = None
        """The text of the generation up to the difference."""
        self.keeps_asked = False
        """Whether all text before the generation is known to be the same: a token at its end may have merged
        with what follows."""
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
        asked = vocabulary.text(self.seen[at:start])
        if asked is not None and self.prompt_rest is not None:
            self.keeps_asked = self.prompt_rest.startswith(asked)
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
        self.keeps_asked = is_last and at >= len(self.history.prompt_text or "")

    def cause(self) -> Cause:
        return next((cause for cause, holds in _CHECKS if holds(self)), "unknown")


def _is_same_text(seen: Pieces, prompt: Pieces) -> bool:
    """Whether the first tokens of both, up to a place where one of each ends, are the same bytes."""
    left, right = bytearray(), bytearray()
    rest_left, rest_right = iter(seen.pieces), iter(prompt.pieces)
    while True:
        is_left = len(left) <= len(right)
        piece = next(rest_left if is_left else rest_right, None)
        if piece is None:  # all of what was seen may stand in the prompt, where its last token goes on
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
    """Whether nothing but markup and whitespace was generated from the difference on."""
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
    """Whether the difference lies in a function call."""
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
    """Where in what was seen, after the difference, the prompt goes on."""
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
    """Whether the difference is one of the first prompt, not of the generation just after it."""
    return _is_in_first_prompt(mismatch) and not mismatch.keeps_asked


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
