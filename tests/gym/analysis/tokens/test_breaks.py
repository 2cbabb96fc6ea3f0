"""The likely cause of a prompt that does not continue the tokens before it, from texts or from ids only."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.analysis.tokens.breaks import CAUSES, first_difference
from nemo_gym.analysis.tokens.findings import TokenReport
from tests.support.token_rollouts import REASONING, Turn, call, check, message, played

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "user", "assistant", "system", "\n\n", "36"]
LETTERS = [chr(code) for code in range(32, 127)] + ["\n"]
TOKENS = [*SPECIAL, *WORDS, *LETTERS]
IDS = {token: number for number, token in enumerate(TOKENS)}
LONGEST_FIRST = sorted(TOKENS, key=len, reverse=True)


def encode(text: str) -> list[int]:
    """Encodes like the toy tokenizer: always the longest matching token."""
    ids = []
    while text:
        token = next(token for token in LONGEST_FIRST if text.startswith(token))
        ids.append(IDS[token])
        text = text.removeprefix(token)
    return ids


def byte_level(text: str) -> str:
    return text.replace("\n", "Ċ").replace(" ", "Ġ")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    added = [
        {"id": IDS[token], "content": token, "special": token in SPECIAL} for token in SPECIAL + WORDS[:4]
    ]
    vocabulary = {byte_level(token): IDS[token] for token in TOKENS if token not in SPECIAL}
    data = {"added_tokens": added, "decoder": {"type": "ByteLevel"}, "model": {"vocab": vocabulary}}
    path.write_text(json.dumps(data))
    return path


START = "<|im_start|>system\nToday is May 1.<|im_end|>\n<|im_start|>user\nWhat is 2 + 2, please?<|im_end|>\n"
ASK = "<|im_start|>assistant\n"
NEXT = "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"


def text_turns(said: str, prompt: str, *items: dict[str, Any], first: str = START + ASK) -> list[Turn]:
    return [(encode(first), encode(said), list(items) or [message()]), (encode(prompt), [1], [message()])]


def cause_of(found: TokenReport) -> str:
    (cause,) = found.causes
    assert [one.cause for one in found.breaks] == [cause]
    return cause


CALL = '<tool_call>\n{"name":"add","a":1}\n</tool_call><|im_end|>'
SPACED_CALL = '<tool_call>\n{"name": "add", "a": 1}\n</tool_call><|im_end|>'
THOUGHT = "<think>\nTwo and two, hm.\n</think>\n\n"


@pytest.mark.parametrize(
    ("cause", "turns"),
    [
        (
            "reasoning_stripped",
            text_turns(THOUGHT + "It is 4.<|im_end|>", START + ASK + "It is 4.<|im_end|>" + NEXT),
        ),
        (
            "reasoning_stripped",
            text_turns(THOUGHT + CALL, START + ASK + SPACED_CALL + NEXT, REASONING, call()),
        ),
        (
            "reasoning_stripped",
            text_turns(
                "Hm.\n</think>\n\n4.<|im_end|>",
                START + ASK + "4.<|im_end|>" + NEXT,
                first=START + ASK + "<think>\n",
            ),
        ),
        (
            "reasoning_stripped",
            text_turns(
                "4.<|im_end|>",
                START + ASK + "4.<|im_end|>" + NEXT,
                first=START + ASK + "<think>\n\n</think>\n\n",
            ),
        ),
        ("tool_call_rewritten", text_turns(CALL, START + ASK + SPACED_CALL + NEXT, call())),
        (
            "tool_call_rewritten",
            text_turns("So: " + CALL, START + ASK + "So: " + SPACED_CALL + NEXT, message(), call()),
        ),
        ("whitespace", text_turns("4.\n<|im_end|>", START + ASK + "4.<|im_end|>" + NEXT)),
        ("whitespace", text_turns("4.<|im_end|>", START + ASK + "4.\n<|im_end|>" + NEXT)),
        ("whitespace", text_turns(" 4 of them.<|im_end|>", START + ASK + "4 of them.<|im_end|>" + NEXT)),
        ("whitespace", text_turns(CALL[:-10] + "\n<|im_end|>", START + ASK + CALL + NEXT, call())),
        ("template", text_turns("4.<|endoftext|>", START + ASK + "4.<|im_end|>" + NEXT)),
        ("template", text_turns("4.<|im_end|>", START + ASK + "4." + NEXT)),
        ("history_shorter", text_turns("It is 4.<|im_end|>", START + ASK)),
        ("history_shorter", text_turns("It is 4.<|im_end|>", "<|im_start|>user\nAnd now?" + ASK)),
        (
            "prompt_changed",
            text_turns("4.<|im_end|>", START.replace("1", "22") + ASK + "4.<|im_end|>" + NEXT),
        ),
        ("prompt_changed", text_turns("4.<|im_end|>", START[40:] + ASK + "4.<|im_end|>" + NEXT * 2)),
        (
            "prompt_changed",
            text_turns(
                "<|im_end|>",
                START + "<|im_start|><|im_end|>" + NEXT * 2,
                first=START + "<|endoftext|><|im_start|>",
            ),
        ),
        (
            "prompt_changed",
            text_turns("4.<|im_end|>", START + "\n" + ASK + "4.<|im_end|>" + NEXT, first=START + " " + ASK),
        ),
        (
            "prompt_changed",
            text_turns("<|im_end|>", START + "\n\n<|im_end|>" + NEXT * 2, first=START + "<|im_start|>"),
        ),
        ("unknown", text_turns("It is 4.<|im_end|>", START + ASK + "It was 5, or 6.<|im_end|>" + NEXT)),
    ],
)
def test_likely_cause_is_derived_from_texts(
    tmp_path: Path, tokenizer: Path, cause: str, turns: list[Turn]
) -> None:
    assert cause in CAUSES
    assert cause_of(check(tmp_path, played(turns), tokenizer=tokenizer)) == cause


def test_the_same_text_in_other_tokens_is_retokenised(tmp_path: Path, tokenizer: Path) -> None:
    first, rest = encode(START + ASK), encode("<|im_end|>" + NEXT)
    said = [*encode("It is "), IDS["3"], IDS["6"], *encode(".<|im_end|>")]
    turns: list[Turn] = [(first, said, [message()]), (first + encode("It is 36.") + rest, [1], [message()])]
    (one,) = check(tmp_path, played(turns), tokenizer=tokenizer).breaks
    assert one.cause == "retokenised"
    at = len(first) + 6
    assert (one.position, one.text_source) == (at, str(tokenizer))
    pair = next(pair for pair in one.tokens if pair.position == at)
    assert (pair.seen_id, pair.seen_text, pair.prompt_id, pair.prompt_text) == (
        IDS["3"],
        "3",
        IDS["36"],
        "36",
    )
    assert one.seen_text is not None and one.seen_text.endswith("assistant\nIt is 36.<|im_end|>")
    assert one.prompt_text is not None and "It is 36.<|im_end|>\n<|im_start|>user" in one.prompt_text


def test_a_last_token_that_merges_with_what_follows_is_retokenised(tmp_path: Path, tokenizer: Path) -> None:
    first = encode(START)
    turns: list[Turn] = [
        (first, encode("Hi\n"), [message()]),
        (first + encode("Hi\n\nYou"), [1], [message()]),
    ]
    assert cause_of(check(tmp_path, played(turns), tokenizer=tokenizer)) == "retokenised"


def test_whitespace_before_a_generation_that_merges_with_the_first_prompt_is_whitespace(
    tmp_path: Path, tokenizer: Path
) -> None:
    turns = text_turns("4.<|im_end|>", START + ASK + "\n4.<|im_end|>" + NEXT)
    (one,) = check(tmp_path, played(turns), tokenizer=tokenizer).breaks
    assert (one.cause, one.position) == ("whitespace", len(encode(START + ASK)) - 1)


def test_changed_message_after_the_first_prompt_is_reported(tmp_path: Path, tokenizer: Path) -> None:
    first, said = START + ASK, "4.<|im_end|>"
    asked = "\n<|im_start|>user\nHere is a long text: the quick brown fox jumps.<|im_end|>\n" + ASK
    cut = asked.replace("quick brown fox", "(cut)")
    turns: list[Turn] = [
        (encode(first), encode(said), [message()]),
        (encode(first + said + asked), encode("Yes.<|im_end|>"), [message()]),
        (encode(first + said + cut + "Yes.<|im_end|>" + NEXT * 2), [1], [message()]),
    ]
    assert cause_of(check(tmp_path, played(turns), tokenizer=tokenizer)) == "message_changed"


def test_dropped_turns_are_a_shorter_history_even_with_a_longer_prompt(tmp_path: Path) -> None:
    system, asked, said = list(range(100, 140)), list(range(200, 230)), list(range(300, 330))
    again, answer = list(range(400, 440)), list(range(500, 520))
    turns: list[Turn] = [
        (system + asked, said, [message()]),
        (system + asked + said + again, answer, [message()]),
        (system + again + answer + list(range(600, 800)), [1], [message()]),
    ]
    assert cause_of(check(tmp_path, played(turns))) == "history_shorter"


LONG = list(range(100, 140))


@pytest.mark.parametrize(
    ("cause", "said", "prompt", "items"),
    [
        (
            "reasoning_stripped",
            [1, 50, 51, 52, 2, 7, 8, 9, 3],
            [*LONG, 7, 8, 9, 3, 60, 61],
            [REASONING, message()],
        ),
        ("reasoning_stripped", [1, 50, 51, 52, 2, 7, 3], [*LONG, 7, 3, 60, 61, 62, 63], [REASONING, call()]),
        ("tool_call_rewritten", [7, 8, 9, 10, 11, 3], [*LONG, 7, 8, 70, 71, 72, 3, 60], [call()]),
        ("template", [7, 8, 9, 10, 3], [*LONG, 7, 8, 9, 10, 4, 60], [message()]),
        ("template", [7, 8, 9, 10, 11, 3], [*LONG, 7, 8, 9, 10, 3, 60], [call()]),
        ("prompt_changed", [7, 8, 3], [99, *LONG[1:], 7, 8, 3, 60], [message()]),
        ("prompt_changed", [7, 3], [*LONG[:-1], 3, 50, 7, 3, *range(60, 70)], [message()]),
        ("prompt_changed", [3], [*LONG[:-2], 3, 50, 51, 3, *range(60, 70)], [message()]),
        ("unknown", [7, 8, 9, 10, 11, 3], [*LONG, 7, 8, 70, 71, 72, 3, 60], [message(), call()]),
        ("unknown", [7, 8, 9, 10, 11, 3], [*LONG, 7, 8, 70, 71, 72, 3, 60], [message()]),
    ],
)
def test_ids_without_texts_still_show_some_causes(
    tmp_path: Path, cause: str, said: list[int], prompt: list[int], items: list[dict[str, Any]]
) -> None:
    found = check(tmp_path, played([(LONG, said, items), (prompt, [1], [message()])]))
    assert cause_of(found) == cause
    assert found.breaks[0].seen_text is None


def test_text_of_a_user_is_not_mistaken_for_text_of_the_model(tmp_path: Path) -> None:
    user = {"type": "message", "role": "user", "content": "Go on"}
    turns: list[Turn] = [
        (LONG, [7, 3], [message()]),
        ([*LONG, 7, 3, 20], [30, 31, 32, 33, 3], [user, call()]),
        ([*LONG, 7, 3, 20, 30, 40, 41, 42, 3], [1], [message()]),
    ]
    assert cause_of(check(tmp_path, played(turns))) == "tool_call_rewritten"


@given(st.text("ab"), st.text("ab"))
def test_the_first_difference_is_the_first(a: str, b: str) -> None:
    at = first_difference(a, b)
    assert a[:at] == b[:at]
    assert at == min(len(a), len(b)) or a[at] != b[at]
