"""Checks whether the tokens of a rollouts file can be trained on: breaks between turns, malformed fields.

Invariant: one line is in memory at a time, besides the keys of earlier lines. All turns, breaks and defects
are counted; the first few breaks and defects are kept to be shown.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.analysis.tokens.breaks import Cause, History, Mismatch, Span, first_difference
from nemo_gym.analysis.tokens.defects import ID_BYTES, Defects, defects_of, pack_tokens
from nemo_gym.analysis.tokens.findings import Break, DefectCount, Place, TokenPair, TokenReport
from nemo_gym.analysis.tokens.lines import TokenLine, read_token_lines
from nemo_gym.analysis.tokens.texts import TextSources, Vocabulary
from nemo_gym.openai_utils.wire_model import has_tokens
from nemo_gym.records import BadLines, Record
from nemo_gym.terminal import one_line
from nemo_gym.types import LOG_PROBS_MODE_KEY_NAME, RESPONSE_KEY_NAME

DEFAULT_MOST_BREAKS = 5
UNKNOWN_MODE = "unknown"
OTHER_MODES = "others"

_MOST_PLACES = 5
_MOST_MODES = 20
_MODE_CHARACTERS = 80
_BEFORE, _AFTER = 3, 6
"""Tokens shown around a break."""
_CHARACTERS_BEFORE, _CHARACTERS_AFTER = 40, 80
_MASK_KEY_NAME = "mask_sample"


def report_tokens(
    path: Path | str,
    *,
    tokenizer: Path | None = None,
    most_breaks: int = DEFAULT_MOST_BREAKS,
    bad_lines: BadLines | None = None,
) -> TokenReport:
    """Check the tokens of a rollouts file. The first `most_breaks` breaks are kept to be shown.

    `tokenizer` gives the texts of tokens: a GGUF file, a `tokenizer.json` or a folder with one.
    """
    bad_lines = BadLines() if bad_lines is None else bad_lines
    report, texts = TokenReport(Path(path)), TextSources(tokenizer)
    for rollout in read_token_lines(report.path, bad_lines):
        _Walk(report, texts, most_breaks, rollout).take()
    report.bad_lines = bad_lines.count
    return report


class _Turn(NamedTuple):
    """One model call whose ids can be compared."""

    item: dict[str, Any]
    prompt: list[int]
    generation: list[int]
    packed_prompt: bytes
    packed_seen: bytes
    """Prompt and generation."""


class _Stretch(NamedTuple):
    """A part of the history: a generation, or a part of unknown origin."""

    start: int
    end: int
    items: slice | None
    """The output items of the generation and those before it; None if unknown."""


class _Walk:
    """Checks the turns of one rollout and adds the findings to the report."""

    def __init__(self, report: TokenReport, texts: TextSources, most_breaks: int, rollout: TokenLine) -> None:
        self._report, self._texts, self._most_breaks, self._rollout = report, texts, most_breaks, rollout
        self._output = _output_of(rollout.record)
        self._turns = self._generated = self._last_prompt = 0
        self._is_clean = True
        self._previous: _Turn | None = None
        """None also if its ids cannot be compared."""
        self._stretches: list[_Stretch] = []
        self._first_prompt = 0
        self._has_vocabulary = False
        self._found_vocabulary: Vocabulary | None = None
        self._next_item = 0
        """The first item that may belong to the next turn."""

    def take(self) -> None:
        for place, item in enumerate(self._output):
            if isinstance(item, dict) and has_tokens(item):
                self._take_item(place, item)
        report = self._report
        report.rollouts += 1
        if not self._turns:
            report.rollouts_without_tokens += 1
            return
        report.rollouts_with_tokens += 1
        report.turns += self._turns
        report.prompt_tokens += self._last_prompt
        report.generated_tokens += self._generated
        is_masked = _is_masked(self._rollout.record)
        report.masked_rollouts += is_masked
        if self._is_clean and not is_masked:
            report.trainable_rollouts += 1
            report.trainable_tokens += self._generated

    def _take_item(self, place: int, item: dict[str, Any]) -> None:
        prompt, generation = item.get("prompt_token_ids"), item.get("generation_token_ids")
        packed = pack_tokens(item)
        defects = defects_of(item, packed)
        if defects:
            self._count_defects(place, defects)
        if not generation:
            return
        self._turns += 1
        self._count_mode(item)
        self._generated += len(generation) if isinstance(generation, list) else 0
        self._last_prompt = len(prompt) if isinstance(prompt, list) else 0
        if packed.prompt is not None and packed.generation is not None:
            seen = packed.prompt + packed.generation
            self._take_turn(place, _Turn(item, prompt or [], generation, packed.prompt, seen))
        else:
            self._report.unchecked_turns += self._turns > 1
            self._previous = None
        self._next_item = place + 1

    def _take_turn(self, place: int, turn: _Turn) -> None:
        report, length = self._report, len(turn.prompt)
        if self._previous is not None:
            is_continuous = turn.packed_prompt.startswith(self._previous.packed_seen)
            report.follow_up_turns += 1
            report.continuous_turns += is_continuous
            if not is_continuous:
                self._take_break(place, turn, self._previous)
        elif self._turns > 1:
            report.unchecked_turns += 1
            self._stretches = [_Stretch(0, length, None)]
        self._first_prompt = self._first_prompt or length
        items = slice(self._next_item, place + 1)
        self._stretches.append(_Stretch(length, length + len(turn.generation), items))
        self._previous = turn

    def _take_break(self, place: int, turn: _Turn, previous: _Turn) -> None:
        self._is_clean = False
        report = self._report
        history = History(
            previous.prompt + previous.generation,
            self._first_prompt,
            [_span(self._output, stretch) for stretch in self._stretches],
            _text_of(previous.item, "prompt_str"),
            _text_of(previous.item, "generation_str"),
        )
        at = first_difference(previous.packed_seen, turn.packed_prompt) // ID_BYTES
        text = _text_of(turn.item, "prompt_str")
        mismatch = Mismatch(history, turn.prompt, at, self._vocabulary(), text)
        cause = mismatch.cause()
        report.causes[cause] = report.causes.get(cause, 0) + 1
        if len(report.breaks) < self._most_breaks:
            report.breaks.append(self._break(place, mismatch, cause))
        kept = [stretch for stretch in self._stretches if stretch.end <= mismatch.at]
        self._stretches = [*kept, _Stretch(mismatch.at, len(turn.prompt), None)]

    def _vocabulary(self) -> Vocabulary | None:
        if not self._has_vocabulary:
            self._found_vocabulary = self._texts.vocabulary(self._rollout.record, self._output)
            self._has_vocabulary = True
        return self._found_vocabulary

    def _break(self, place: int, mismatch: Mismatch, cause: Cause) -> Break:
        before, seen, prompt = mismatch.before, mismatch.seen_rest, mismatch.prompt_rest
        has_texts = before is not None and seen is not None and prompt is not None
        begin = (before or "")[-_CHARACTERS_BEFORE:]
        return Break(
            self._rollout.number,
            self._rollout.key,
            self._turns,
            place,
            cause,
            mismatch.at,
            len(mismatch.seen),
            len(mismatch.prompt),
            mismatch.source if has_texts else None,
            begin + (seen or "")[:_CHARACTERS_AFTER] if has_texts else None,
            begin + (prompt or "")[:_CHARACTERS_AFTER] if has_texts else None,
            _pairs(mismatch),
        )

    def _count_defects(self, place: int, defects: Defects) -> None:
        self._is_clean = False
        for defect, values in defects.items():
            count = self._report.defects.setdefault(defect, DefectCount())
            count.items += 1
            count.values += values
            if len(count.first) < _MOST_PLACES:
                count.first.append(Place(self._rollout.number, self._rollout.key, place))

    def _count_mode(self, item: dict[str, Any]) -> None:
        said, modes = item.get(LOG_PROBS_MODE_KEY_NAME), self._report.log_probs_modes
        mode = UNKNOWN_MODE if said is None else one_line(str(said)[:_MODE_CHARACTERS])
        if mode not in modes and len(modes) >= _MOST_MODES:
            mode = OTHER_MODES
        modes[mode] = modes.get(mode, 0) + 1


def _output_of(record: Record) -> list[Any]:
    response = record.get(RESPONSE_KEY_NAME)
    output = response.get("output") if isinstance(response, dict) else None
    return output if isinstance(output, list) else []


def _is_masked(record: Record) -> bool:
    """Whether the environment excluded the rollout from training."""
    config = record.get("instance_config")
    flags = [record.get(_MASK_KEY_NAME), config.get(_MASK_KEY_NAME) if isinstance(config, dict) else None]
    return True in flags


def _span(output: Sequence[Any], stretch: _Stretch) -> Span:
    items = None if stretch.items is None else [item for item in output[stretch.items] if _is_generated(item)]
    return Span(stretch.start, stretch.end, items)


def _is_generated(item: Any) -> bool:
    """Whether the model generated the item."""
    if not isinstance(item, dict):
        return False
    return item.get("type") in ("reasoning", "function_call") or item.get("role") == "assistant"


def _text_of(item: dict[str, Any], name: str) -> str | None:
    text = item.get(name)
    return text if isinstance(text, str) else None


def _pairs(mismatch: Mismatch) -> list[TokenPair]:
    """The tokens around the difference, side by side."""
    seen, prompt, vocabulary = mismatch.seen, mismatch.prompt, mismatch.vocabulary
    begin, end = max(0, mismatch.at - _BEFORE), mismatch.at + _AFTER

    def text(token: int | None) -> str | None:
        return None if token is None or vocabulary is None else vocabulary.text([token])

    rows = enumerate(zip_longest(seen[begin:end], prompt[begin:end]), begin)
    return [TokenPair(position, a, text(a), b, text(b)) for position, (a, b) in rows]
