import json
import math
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.tokens.defects import DEFECTS
from nemo_gym.analysis.tokens.report import OTHER_MODES, UNKNOWN_MODE, report_tokens
from nemo_gym.analysis.tokens.texts import bundled_model
from nemo_gym.errors import InputError
from nemo_gym.records import BadLines
from tests.support.token_rollouts import (
    REASONING,
    TOOL_OUTPUT,
    Turn,
    bundle,
    call,
    check,
    message,
    played,
    record,
    write,
)


def test_rollout_whose_turns_extend_all_earlier_tokens_is_clean(tmp_path: Path) -> None:
    output = played([([1, 2], [3, 4], [call()]), ([1, 2, 3, 4, 5], [6], [REASONING, message()])])
    found = check(tmp_path, output)
    assert found.is_clean
    assert (found.rollouts, found.rollouts_with_tokens, found.rollouts_without_tokens) == (1, 1, 0)
    assert (found.turns, found.follow_up_turns, found.continuous_share) == (2, 1, 1.0)
    assert (found.prompt_tokens, found.generated_tokens, found.trainable_tokens) == (5, 3, 3)
    assert found.trainable_rollouts == 1


def test_prompt_equal_to_all_earlier_tokens_is_not_a_break(tmp_path: Path) -> None:
    assert check(tmp_path, played([([1], [2], [call()]), ([1, 2], [3], [message()])])).is_clean


@pytest.mark.parametrize(
    "output", [[], None, "text", [message()], [None, 3, "x"], [{**message(), **bundle(None, None)}]]
)
def test_rollouts_without_token_ids_are_counted_but_not_as_defects(tmp_path: Path, output: Any) -> None:
    found = check(tmp_path, output, [{**message(), **bundle([1], [2])}])
    assert found.is_clean
    assert (found.rollouts_with_tokens, found.rollouts_without_tokens) == (1, 1)


@pytest.mark.parametrize("response", [None, 3, "x", []])
def test_rollout_without_a_response_counts_as_without_token_ids(tmp_path: Path, response: Any) -> None:
    path = write(tmp_path / "rollouts.jsonl", [record(None, response=response)])
    assert report_tokens(path).rollouts_without_tokens == 1


def test_break_is_reported_with_its_position_and_tokens(tmp_path: Path) -> None:
    fine = [{**message(), **bundle([1], [2])}]
    found = check(
        tmp_path, fine, played([([1, 2, 3], [4, 5, 6], [call()]), ([1, 2, 3, 4, 9, 6, 7], [8], [message()])])
    )
    assert (found.follow_up_turns, found.continuous_turns, found.break_count) == (1, 0, 1)
    (one,) = found.breaks
    assert (one.line, one.key, one.turn, one.item, one.position) == (2, "1:0", 2, 2, 4)
    assert (one.seen_length, one.prompt_length, one.text_source) == (6, 7, None)
    shown = [(pair.position, pair.seen_id, pair.prompt_id) for pair in one.tokens]
    assert shown == [(1, 2, 2), (2, 3, 3), (3, 4, 4), (4, 5, 9), (5, 6, 6), (6, None, 7)]
    assert (found.trainable_rollouts, found.trainable_tokens) == (1, 1)


def test_after_a_break_each_turn_is_compared_with_the_one_before_it(tmp_path: Path) -> None:
    turns: list[Turn] = [
        ([1, 2], [3], [call()]),
        ([1, 9], [4], [call()]),
        ([1, 9, 4, 5], [6], [call()]),
        ([1, 2, 3], [7], [message()]),
    ]
    found = check(tmp_path, played(turns))
    assert (found.follow_up_turns, found.continuous_turns) == (3, 1)
    assert [one.turn for one in found.breaks] == [2, 4]


def test_all_breaks_are_counted_and_the_requested_number_is_shown(tmp_path: Path) -> None:
    broken = played([([1, 2], [3], [call()]), ([5, 5, 5, 5], [4], [message()])])
    for most in (0, 2):
        found = check(tmp_path, *[broken] * 4, most_breaks=most)
        assert (found.break_count, sum(found.causes.values()), len(found.breaks)) == (4, 4, most)


def test_texts_in_the_rollout_are_used(tmp_path: Path) -> None:
    texts = {"prompt_str": "Ask: ", "generation_str": "It is 36."}
    output = [
        {**message(), **bundle([1, 2], [3, 4, 5]), **texts},
        {**message(), **bundle([1, 2, 3, 9, 5, 6], [7]), "prompt_str": "Ask: It is 36. And?"},
    ]
    (one,) = check(tmp_path, output).breaks
    assert (one.cause, one.text_source) == ("retokenised", "prompt_str and generation_str of the rollout")
    output[1]["prompt_str"] = "Ask: It is  36. And?"
    (one,) = check(tmp_path, output).breaks
    assert (one.cause, one.seen_text) == ("whitespace", "Ask: It is 36.")
    assert one.prompt_text == "Ask: It is  36. And?"


@pytest.mark.parametrize(
    ("cause", "prompt"), [("prompt_changed", "Ask : It is 36. And?"), ("whitespace", "Ask: It  is 36. And?")]
)
def test_texts_distinguish_a_changed_first_prompt_from_a_changed_generation(
    tmp_path: Path, cause: str, prompt: str
) -> None:
    output = [
        {**message(), **bundle([1, 2], [3, 4, 5]), "prompt_str": "Ask: ", "generation_str": "It is 36."},
        {**message(), **bundle([1, 9, 3, 4, 5, 6], [7]), "prompt_str": prompt},
    ]
    (one,) = check(tmp_path, output).breaks
    assert (one.cause, one.position) == (cause, 1)


@pytest.mark.parametrize("end", [[], [3]])
def test_texts_beside_log_probabilities_are_used(tmp_path: Path, end: list[int]) -> None:
    def said(tokens: dict[int, str]) -> dict[str, Any]:
        item = message("".join(tokens.values()))
        item["content"][0]["logprobs"] = [
            {"token": text, "logprob": -0.5, "bytes": list(text.encode()) if number % 2 else None}
            for number, text in tokens.items()
        ]
        return item

    first, second = {10: "It", 11: " é", 12: "3", 13: "6"}, {14: "36", 15: " more"}
    output = [
        {**said(first), **bundle([1], [*first, *end])},
        {**said(second), **bundle([1, 10, 11, 14, *end], list(second))},
    ]
    (one,) = check(tmp_path, output).breaks
    assert one.position == 3
    assert [(pair.seen_text, pair.prompt_text) for pair in one.tokens[1:4]] == [
        ("It", "It"),
        (" é", " é"),
        ("3", "36"),
    ]
    assert one.cause == "retokenised"


def test_ids_in_place_of_texts_are_not_used_as_texts(tmp_path: Path) -> None:
    item = message("x")
    item["content"][0]["logprobs"] = [{"token": "token_id:10", "logprob": -1.0}]
    output = [{**item, **bundle([1], [10])}, {**message(), **bundle([1, 11, 5], [12])}]
    (one,) = check(tmp_path, output).breaks
    assert {pair.seen_text for pair in one.tokens} == {None}


@pytest.mark.skipif(bundled_model() is None, reason="the package with the small model is not installed")
def test_texts_come_from_the_small_model_if_the_rollout_names_it(tmp_path: Path) -> None:
    output = [{**message(), **bundle([1, 2], [17, 18])}, {**message(), **bundle([1, 2, 17, 19], [20])}]
    records = [
        record(output, response={"model": f"org/{name}", "output": output})
        for name in ("SmolLM2-135M", "other")
    ]
    records[1]["_ng_task_index"] = 1
    known, other = report_tokens(write(tmp_path / "rollouts.jsonl", records)).breaks
    assert known.text_source is not None and known.text_source.endswith(".gguf")
    assert (known.tokens[0].seen_text, known.tokens[3].prompt_text) == ("<|im_start|>", "#")
    assert (known.seen_text, known.prompt_text) == ('<|im_start|><|im_end|>!"', "<|im_start|><|im_end|>!#")
    assert other.text_source is None


@pytest.mark.parametrize(
    ("defect", "values", "fields"),
    [
        ("nan_log_probs", 1, {"generation_log_probs": [None, -1.0]}),
        ("nan_log_probs", 2, {"generation_log_probs": [math.nan, math.nan]}),
        ("infinite_log_probs", 1, {"generation_log_probs": [-1.0, -math.inf]}),
        ("infinite_log_probs", 1, {"generation_log_probs": [math.inf, -1.0]}),
        ("positive_log_probs", 1, {"generation_log_probs": [1e-9, -1.0]}),
        ("positive_log_probs", 1, {"generation_log_probs": [-1, 1]}),
        ("bad_log_probs", 1, {"generation_log_probs": ["-1.0", -1.0]}),
        ("bad_log_probs", 1, {"generation_log_probs": "none"}),
        ("length_mismatch", 1, {"generation_log_probs": [-1.0]}),
        ("length_mismatch", 2, {"generation_log_probs": []}),
        ("partial_bundle", 1, {"generation_log_probs": None}),
        ("partial_bundle", 1, {"prompt_token_ids": None}),
        ("partial_bundle", 2, {"prompt_token_ids": None, "generation_log_probs": None}),
        ("partial_bundle", 1, {"generation_token_ids": None}),
        ("bad_ids", 1, {"generation_token_ids": [1, -1]}),
        ("bad_ids", 2, {"generation_token_ids": [1.0, "2"]}),
        ("bad_ids", 1, {"prompt_token_ids": [1, None]}),
        ("bad_ids", 1, {"prompt_token_ids": [1, [2]]}),
        ("bad_ids", 1, {"prompt_token_ids": "1 2"}),
        ("bad_ids", 1, {"prompt_token_ids": [1, 1 << 32]}),
        ("bad_ids", 2, {"prompt_token_ids": [1, True, 0, False]}),
        ("bad_ids", 1, {"generation_token_ids": [True, 4]}),
        ("empty_generation", 1, {"generation_token_ids": [], "generation_log_probs": []}),
    ],
)
def test_defect_is_counted_with_its_position(
    tmp_path: Path, defect: str, values: int, fields: dict[str, Any]
) -> None:
    assert defect in DEFECTS
    fine, bad = {**message(), **bundle([1], [2])}, {**message(), **bundle([1, 2], [3, 4]), **fields}
    found = check(tmp_path, [fine], [TOOL_OUTPUT, bad])
    assert not found.is_clean and found.break_count == 0
    ((name, count),) = found.defects.items()
    assert (name, count.items, count.values) == (defect, 1, values)
    assert [(one.line, one.key, one.item) for one in count.first] == [(2, "1:0", 1)]
    assert (found.trainable_rollouts, found.trainable_tokens) == (1, 1)


def test_log_probabilities_of_whole_and_huge_numbers_are_numbers(tmp_path: Path) -> None:
    assert check(tmp_path, [{**message(), **bundle([1], [2, 3], generation_log_probs=[0, -3])}]).is_clean
    huge = check(tmp_path, [{**message(), **bundle([1], [2], generation_log_probs=[-(10**400)])}])
    assert list(huge.defects) == ["infinite_log_probs"]


def test_every_defect_is_counted_and_the_first_places_kept(tmp_path: Path) -> None:
    bad = {**message(), **bundle([1], [2, 3], generation_log_probs=[None, 1.0, 2.0])}
    found = check(tmp_path, *[[bad]] * 7)
    counts = {name: (count.items, count.values, len(count.first)) for name, count in found.defects.items()}
    assert counts == {
        "nan_log_probs": (7, 7, 5),
        "positive_log_probs": (7, 14, 5),
        "length_mismatch": (7, 7, 5),
    }


@pytest.mark.parametrize("broken", [{"prompt_token_ids": None}, {"generation_token_ids": [-1]}])
def test_turns_next_to_invalid_ids_are_counted_separately(tmp_path: Path, broken: dict[str, Any]) -> None:
    output = [
        {**message(), **bundle([1], [2])},
        {**message(), **bundle([1, 2], [3]), **broken},
        {**message(), **bundle([1, 2, 3], [4])},
        {**message(), **bundle([1, 2, 3, 4], [5])},
    ]
    found = check(tmp_path, output)
    assert (found.turns, found.follow_up_turns, found.continuous_turns, found.unchecked_turns) == (4, 1, 1, 2)
    assert (found.generated_tokens, found.trainable_tokens) == (4, 0)


def test_the_kinds_of_log_probabilities_are_counted(tmp_path: Path) -> None:
    modes = ["raw_logprobs", "raw_logprobs", "processed_logprobs", None, {"odd": 1}]
    outputs = [[{**message(), **bundle([1], [2], generation_log_probs_mode=mode)}] for mode in modes]
    found = check(tmp_path, *outputs, [{**message(), **bundle([1], [2])}])
    assert found.log_probs_modes == {
        "raw_logprobs": 2,
        "processed_logprobs": 1,
        UNKNOWN_MODE: 2,
        "{'odd': 1}": 1,
    }


def test_many_kinds_of_log_probabilities_need_no_additional_memory(tmp_path: Path) -> None:
    outputs = [[{**message(), **bundle([1], [2], generation_log_probs_mode=f"mode {n}")}] for n in range(30)]
    modes = check(tmp_path, *outputs).log_probs_modes
    assert (len(modes), modes[OTHER_MODES]) == (21, 10)


def test_rollouts_that_the_environment_masked_are_not_trainable(tmp_path: Path) -> None:
    output = [{**message(), **bundle([1], [2, 3])}]
    flags = [{}, {"mask_sample": True}, {"instance_config": {"mask_sample": True}}, {"mask_sample": False}]
    records = [record(output, task, **fields) for task, fields in enumerate(flags)]
    found = report_tokens(write(tmp_path / "rollouts.jsonl", records))
    assert (found.masked_rollouts, found.trainable_rollouts, found.trainable_tokens) == (2, 2, 4)
    assert found.is_clean


def test_bad_lines_are_an_error_or_are_skipped(tmp_path: Path) -> None:
    good = json.dumps(record([{**message(), **bundle([1], [2])}]))
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{good}\nnonsense\n{good}\n")
    with pytest.raises(InputError, match=r"rollouts.jsonl:2: not JSON"):
        report_tokens(path)
    bad_lines = BadLines(are_skipped=True)
    found = report_tokens(path, bad_lines=bad_lines)
    assert (found.rollouts, found.bad_lines, bad_lines.count) == (1, 2, 2)


def keyless(output: Any, **fields: Any) -> dict[str, Any]:
    return {"response": {"output": output}, **fields}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"agent_ref": None, "_ng_task_index": 3},
        {"_ng_task_index": "3", "_ng_rollout_index": True},
        {"_ng_task_index": -1, "_ng_rollout_index": 1 << 40},
    ],
)
def test_rollouts_without_key_and_agent_are_checked_and_named_by_their_line(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    broken = played([([1, 2], [3], [call()]), ([5, 5, 5, 5], [4], [message()])])
    bad = [{**message(), **bundle([1], [2], generation_log_probs=[None])}]
    records = [keyless(output, **fields) for output in (broken, bad, broken)]
    found = report_tokens(write(tmp_path / "rollouts.jsonl", records))
    assert (found.rollouts, found.break_count) == (3, 2)
    assert [(one.line, one.key) for one in found.breaks] == [(1, None), (3, None)]
    assert [(one.line, one.key) for one in found.defects["nan_log_probs"].first] == [(2, None)]


def test_rollout_with_a_key_needs_no_agent_but_must_be_unique(tmp_path: Path) -> None:
    output = [{**message(), **bundle([1], [2])}]
    one = keyless(output, _ng_task_index=4, _ng_rollout_index=2)
    path = write(tmp_path / "rollouts.jsonl", [keyless(output), one, keyless(output)])
    assert (report_tokens(path).rollouts, report_tokens(path).is_clean) == (3, True)
    write(path, [one, keyless(output), one])
    with pytest.raises(InputError, match=r"rollouts.jsonl:3: repeats rollout 4:2 of line 1"):
        report_tokens(path)
    assert report_tokens(path, bad_lines=BadLines(are_skipped=True)).rollouts == 2


def test_line_with_neither_key_nor_response_is_not_a_rollout(tmp_path: Path) -> None:
    task = {"responses_create_params": {"input": "Add."}, "agent_ref": {"name": "adder"}}
    path = write(tmp_path / "tasks.jsonl", [task])
    with pytest.raises(InputError, match=r"tasks.jsonl:1: not a rollout: .*response.*; give a rollouts file"):
        report_tokens(path)


def test_the_report_is_plain_data(tmp_path: Path) -> None:
    data = check(tmp_path, played([([1], [2], [call()]), ([3], [4], [message()])])).as_data()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["break_count"], data["continuous_share"], data["is_clean"]) == (1, 0.0, False)
