import json
from pathlib import Path
from typing import Any

import pytest

from tests.gym.cli.conftest import Ng
from tests.support.token_rollouts import bundle, call, message, played, record, write

RED = "\x1b[31mred\x1b[0m\x1b]0;owned\x07\u202e"
GOOD = played([([1, 2], [3], [call()]), ([1, 2, 3, 4], [5], [message()])])
BROKEN = played(
    [(list(range(40)), [50, 51, 52, 53, 3], [message()]), ([*range(40), 50, 60, 61], [5], [message()])]
)


@pytest.fixture(autouse=True)
def rollouts(tmp_path: Path) -> Path:
    return write(tmp_path / "rollouts.jsonl", [record(GOOD), record(GOOD, 1)])


def tokenizer(path: Path, texts: dict[int, str]) -> str:
    added = [{"id": number, "content": text, "special": False} for number, text in texts.items()]
    path.write_text(json.dumps({"model": {"vocab": {}}, "added_tokens": added}))
    return str(path)


def test_file_without_errors_is_reported_as_valid(ng: Ng) -> None:
    done = ng("token_report", "rollouts.jsonl")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "rollouts.jsonl",
        "Rollouts: 2, 2 with token ids, 0 without",
        "Turns: 4; 2 follow an earlier turn, and 100 % of these start with exactly its tokens (0 breaks)",
        "Tokens: 8 in the last prompt of each rollout, 4 generated, 4 trainable "
        "(in 2 rollouts without breaks or defects)",
        "Log-probabilities (turns): unknown 4",
        "",
        "All tokens can be used for training.",
    ]


def test_a_break_is_shown_token_by_token(ng: Ng, rollouts: Path) -> None:
    write(rollouts, [record(GOOD), record(BROKEN, 7)])
    done = ng("token_report", "+rollouts_jsonl_fpath=rollouts.jsonl")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines()[1:] == [
        "Rollouts: 2, 2 with token ids, 0 without",
        "Turns: 4; 2 follow an earlier turn, and 50.0 % of these start with exactly its tokens (1 break)",
        "Tokens: 47 in the last prompt of each rollout, 8 generated, 2 trainable "
        "(in 1 rollout without breaks or defects)",
        "Log-probabilities (turns): unknown 4",
        "",
        "Breaks by likely cause:",
        "cause            turns  meaning",
        "──────────────────────────────────────────────────────────────────────────────────────────",
        "history_shorter  1      part of the history is missing: dropped, or cut to fit the context",
        "",
        "Line 2, rollout 7:0, turn 2: differs starting at token 41 (45 seen before, 43 in its prompt); "
        "likely cause: history_shorter",
        "position  seen  prompt",
        "─────────────────────────",
        "38        38    38",
        "39        39    39",
        "40        50    50",
        "41        51    60      ≠",
        "42        52    61      ≠",
        "43        53    –       ≠",
        "44        3     –       ≠",
        "",
        "To see texts of tokens, set +tokenizer=<path> to the model's GGUF file or tokenizer.json",
        "",
        "Not all tokens can be used for training: found 1 break and 0 defects.",
    ]


def test_texts_are_shown_completely_without_control_characters(
    ng: Ng, tmp_path: Path, rollouts: Path
) -> None:
    write(rollouts, [record(BROKEN)])
    texts = {number: chr(97 + number % 26) for number in range(50)}
    path = tokenizer(
        tmp_path / "tokenizer.json", texts | {50: RED, 51: "  \n", 52: "ü", 53: ".", 60: "x", 61: '"'}
    )
    done = ng("token_report", "rollouts.jsonl", "--tokenizer", path)
    assert done.code == 1 and "\x1b[" not in done.out and "\u202e" not in done.out
    assert '41        51    "··\\n"' in done.out
    assert '42        52    "ü"' in done.out and '61      "\\""' in done.out
    assert "\nseen:   " in done.out and "\nprompt: " in done.out
    assert "+tokenizer=" not in done.out


def test_tokenizer_without_the_ids_causes_a_warning(ng: Ng, tmp_path: Path, rollouts: Path) -> None:
    write(rollouts, [record(BROKEN)])
    path = tokenizer(tmp_path / "tokenizer.json", {1: "a"})
    done = ng("token_report", "rollouts.jsonl", f"+tokenizer={path}")
    assert f"warning: some of these ids are not in {path}" in done.out


def test_more_breaks_than_are_shown_are_counted(ng: Ng, rollouts: Path) -> None:
    write(rollouts, [record(BROKEN, task) for task in range(4)])
    done = ng("token_report", "rollouts.jsonl", "+most_breaks=1")
    assert (
        done.out.count("\nLine ") == 1
        and "\n… and 3 more breaks; to show more, set +most_breaks=" in done.out
    )


def test_defects_are_listed_with_their_places(ng: Ng, rollouts: Path) -> None:
    bad = {**message(), **bundle([1], [2], generation_log_probs=[None])}
    write(rollouts, [record([bad], task) for task in range(6)])
    done = ng("token_report", "rollouts.jsonl")
    assert done.code == 1
    places = ", ".join(f"line {n + 1} ({n}:0) output[0]" for n in range(5))
    assert (
        f"nan_log_probs  6      6       log-probabilities that are NaN (in JSON: null)  {places}, …"
        in done.out
    )
    assert "\nNot all tokens can be used for training: found 0 breaks and 6 defects.\n" in done.out


def test_rollouts_without_keys_are_named_by_their_line(ng: Ng, rollouts: Path) -> None:
    bad = [{**message(), **bundle([1], [2], generation_log_probs=[None])}]
    write(rollouts, [{"response": {"output": output}} for output in (BROKEN, bad)])
    done = ng("token_report", "rollouts.jsonl")
    assert (done.code, done.err) == (1, "")
    assert "\nLine 1, turn 2: differs starting at token 41 (" in done.out
    assert "  line 2 output[0]\n" in done.out
    data = json.loads(ng("token_report", "rollouts.jsonl", "--json").out)
    assert data["breaks"][0]["key"] is None
    assert data["defects"]["nan_log_probs"]["first"] == [{"line": 2, "key": None, "item": 0}]


def test_turns_that_cannot_be_compared_and_masked_rollouts_are_reported(ng: Ng, rollouts: Path) -> None:
    output = [{**message(), **bundle([1], [2])}, {**message(), **bundle(None, [3])}]
    write(rollouts, [record(output), record(GOOD, 1, mask_sample=True)])
    out = ng("token_report", "rollouts.jsonl").out
    assert "the token fields of one of the two have a defect: 1 turn\n" in out
    assert "defects; the environment excluded 1 rollout with mask_sample)" in out


def test_different_kinds_of_log_probabilities_cause_a_warning(ng: Ng, rollouts: Path) -> None:
    modes = ["raw_logprobs", "processed_logprobs", RED]
    items = [{**message(), **bundle([1], [2], generation_log_probs_mode=mode)} for mode in modes]
    write(rollouts, [record([item], task) for task, item in enumerate(items)])
    done = ng("token_report", "rollouts.jsonl")
    assert (
        "Log-probabilities (turns): raw_logprobs 1, processed_logprobs 1, red 1\nwarning: the turns have"
        in done.out
    )
    assert done.code == 0


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([record([message()])], "No rollout has token ids. To collect them,"),
        ([], "The file contains no rollouts"),
    ],
)
def test_a_file_without_token_ids_fails_unless_that_is_allowed(
    ng: Ng, rollouts: Path, records: list[dict[str, Any]], expected: str
) -> None:
    write(rollouts, records)
    done = ng("token_report", "rollouts.jsonl")
    assert done.code == 1 and f"\n{expected}" in done.out
    assert ng("token_report", "rollouts.jsonl", "+allow_missing=true").code == 0
    assert ng("token_report", "rollouts.jsonl", "--json").code == 1


def test_rollouts_without_token_ids_are_reported(ng: Ng, rollouts: Path) -> None:
    write(rollouts, [record(GOOD), record([message()], 1)])
    done = ng("token_report", "rollouts.jsonl")
    assert done.code == 0
    assert done.out.endswith("\nAll tokens can be used for training; skip 1 rollout without tokens.\n")


def test_one_break_in_many_turns_is_never_rounded_to_all(ng: Ng, rollouts: Path) -> None:
    write(rollouts, [record(BROKEN), *(record(GOOD, task) for task in range(1, 2001))])
    assert "99.9 % of these" in ng("token_report", "rollouts.jsonl").out


def test_json_is_one_object_and_nothing_else(ng: Ng, rollouts: Path) -> None:
    bad = {**message(), **bundle([1], [2], generation_log_probs=[None])}
    write(rollouts, [record(BROKEN), record([bad], 1)])
    done = ng("token_report", "rollouts.jsonl", "--json")
    assert (done.code, done.err) == (1, "")
    data = json.loads(done.out)
    assert (data["break_count"], data["causes"], data["is_clean"]) == (1, {"history_shorter": 1}, False)
    assert data["breaks"][0]["tokens"][3] == {
        "position": 41,
        "seen_id": 51,
        "seen_text": None,
        "prompt_id": 60,
        "prompt_text": None,
    }
    first = [{"line": 2, "key": "1:0", "item": 0}]
    assert data["defects"] == {"nan_log_probs": {"items": 1, "values": 1, "first": first}}


def test_bad_lines_are_skipped_and_reported_on_request(ng: Ng, rollouts: Path) -> None:
    good = rollouts.read_text()
    rollouts.write_text(good + "nonsense\n" + good)
    ng("token_report", "rollouts.jsonl").assert_complains(
        "rollouts.jsonl:3: not JSON", "+skip_bad_lines=true"
    )
    done = ng("token_report", "rollouts.jsonl", "+skip_bad_lines=true")
    assert done.code == 0 and done.err.startswith("warning: 3 lines skipped:\n")
    assert "Rollouts: 2, " in done.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["rollouts_jsonl_fpath"]),
        (("gone.jsonl",), ["gone.jsonl", "No such file"]),
        (("rollouts.jsonl", "more.jsonl"), ["too many arguments"]),
        (("rollouts.jsonl", "+most_breaks=-1"), ["most_breaks"]),
        (("rollouts.jsonl", "+tokenizer=gone.gguf"), ["gone.gguf", "No such file", "tokenizer.json"]),
        (("rollouts.jsonl", "+tokenizer=rollouts.jsonl"), ["rollouts.jsonl", "neither GGUF nor"]),
    ],
)
def test_wrong_arguments_are_one_error(ng: Ng, arguments: tuple[str, ...], expected: list[str]) -> None:
    ng("token_report", *arguments).assert_complains(*expected)
