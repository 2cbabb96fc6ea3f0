"""From input line to materialized input: the worked example, and each step separately."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from tests.support.components import write_files

Row = dict[str, Any]
A, B, C = (json.dumps({"responses_create_params": {"input": text}}) for text in "ABC")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(content: str | bytes, **config: Any) -> list[Row]:
    """The materialized inputs of a file with this content."""
    Path("in.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    fields = {"input_jsonl_fpath": "in.jsonl", "output_jsonl_fpath": "out.jsonl", "agent_name": "agent"}
    config_ = RolloutCollectionConfig.model_validate(fields | config)
    return RolloutCollectionHelper()._preprocess_rows_from_config(config_)


def refusal(content: str | bytes, **config: Any) -> str:
    """The message of the ValueError with which the plan is refused."""
    with pytest.raises(ValueError) as refused:
        planned(content, **config)
    return str(refused.value)


def keys(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]


def lines(*rows: Row) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(**fields: Any) -> Row:
    return {"responses_create_params": {"input": "hello"}, **fields}


def test_worked_example() -> None:
    rows = planned(f"{A}\n{B}\n{A}\n", num_repeats=2, num_repeats_add_seed=True)
    assert keys(rows) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]
    assert [one["responses_create_params"]["input"] for one in rows] == list("AABBAA")
    assert [one["responses_create_params"]["seed"] for one in rows] == [0, 1, 0, 1, 2, 3]


def test_repeated_line_with_three_repeats_has_rollouts_0_to_5() -> None:
    assert keys(planned(f"{A}\n{A}\n", num_repeats=3)) == [(0, number) for number in range(6)]


def test_all_line_endings_give_the_same_lines() -> None:
    rows = planned(f"{A}\r\n{B}\n{A}\n{B}\r\n{A}")
    assert keys(rows) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


@pytest.mark.parametrize("other", [f"{A} ", f" {A}", f"{A}\t", f"{A}\r", A.replace(": ", ":")])
def test_lines_that_differ_in_one_byte_are_different_tasks(other: str) -> None:
    assert keys(planned(f"{A}\n{other}\r\n{A}\n")) == [(0, 0), (1, 0), (0, 1)]


def test_same_data_in_another_key_order_is_another_task() -> None:
    one, two = json.dumps(row(a=1)), json.dumps({"a": 1, **row()})
    assert keys(planned(f"{one}\n{two}\n")) == [(0, 0), (1, 0)]


def test_byte_order_mark_is_not_part_of_the_first_line() -> None:
    rows = planned(b"\xef\xbb\xbf" + f"{A}\n{A}\n".encode())
    assert keys(rows) == [(0, 0), (0, 1)]
    assert rows[0]["responses_create_params"] == {"input": "A"}


def test_blank_lines_are_skipped_and_count_as_lines_only() -> None:
    assert keys(planned(f"\n{A}\n  \t\n\r\n{B}\n\n")) == [(0, 0), (1, 0)]
    assert refusal(f"\n{A}\n\nbroken\n").startswith("in.jsonl:4: ")


def test_limit_reads_only_the_first_lines_that_are_not_blank() -> None:
    assert keys(planned(f"{A}\n\n{A}\n\n{B}\nbroken\n", limit=3, num_repeats=2)) == [
        *((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1))
    ]
    assert len(planned(f"{A}\n{B}\n", limit=100)) == 2


def test_task_indices_of_the_rows_are_kept() -> None:
    rows = planned(
        lines(row(_ng_task_index=7), row(_ng_task_index=3), row(_ng_task_index=7, more=1)), num_repeats=2
    )
    assert keys(rows) == [(7, 0), (7, 1), (3, 0), (3, 1), (7, 2), (7, 3)]


def test_task_index_zero_is_valid() -> None:
    assert keys(planned(lines(row(_ng_task_index=0), row(_ng_task_index=0, other=1)))) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    "some", [(row(_ng_task_index=1), row()), (row(), row(_ng_task_index=1)), (row(_ng_task_index=0), row())]
)
def test_task_indices_on_some_rows_only_are_refused(some: tuple[Row, Row]) -> None:
    message = refusal(lines(*some))
    assert message.startswith("in.jsonl:2: ")
    assert "_ng_task_index" in message


@pytest.mark.parametrize("index", [-1, "3", 1.5, True, 2**40])
def test_invalid_task_index_is_refused(index: Any) -> None:
    message = refusal(lines(row(_ng_task_index=1), row(_ng_task_index=index)))
    assert message.startswith("in.jsonl:2: ")
    assert repr(index) in message


def test_rollout_index_of_a_row_is_replaced() -> None:
    rows = planned(lines(row(_ng_rollout_index=9, _ng_task_index=2)), num_repeats=2)
    assert keys(rows) == [(2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("num_repeats", "counts"),
    [(1, (1, 1, 1)), (None, (1, 1, 1)), (3, (3, 3, 3)), ({"one": 2, "_default": 3}, (2, 3, 2))],
)
def test_repeats_follow_each_other(num_repeats: Any, counts: tuple[int, ...]) -> None:
    refs: list[Row] = [{"agent_ref": {"name": name}, "n": n} for n, name in enumerate(("one", "two", "one"))]
    rows = planned(lines(*(row(**ref) for ref in refs)), num_repeats=num_repeats)
    assert [one["n"] for one in rows] == [n for n, count in enumerate(counts) for _ in range(count)]


def test_repeats_can_be_set_per_agent_of_the_configuration() -> None:
    assert len(planned(f"{A}\n", num_repeats={"agent": 4})) == 4


def test_missing_repeats_are_reported_for_all_agents() -> None:
    rows = [row(agent_ref={"name": name}) for name in ("here", "zeta", "alpha", "zeta")]
    message = refusal(lines(*rows), num_repeats={"here": 1})
    assert "num_repeats" in message and "_default" in message
    assert re.search(r"alpha, zeta\b", message) and "here" not in message


def test_seed_is_always_the_rollout_index() -> None:
    given = row()
    given["responses_create_params"]["seed"] = 77
    rows = planned(
        lines(given), num_repeats=2, num_repeats_add_seed=True, responses_create_params={"seed": 99}
    )
    assert [one["responses_create_params"]["seed"] for one in rows] == [0, 1]
    assert planned(lines(given))[0]["responses_create_params"]["seed"] == 77


@pytest.mark.parametrize(
    "ref", [None, {}, {"name": None}, {"name": ""}, {"type": "responses_api_agents"}, "text", 5]
)
def test_row_without_an_agents_name_gets_exactly_the_configured_one(ref: Any) -> None:
    assert planned(lines(row(agent_ref=ref)))[0]["agent_ref"] == {"name": "agent"}
    assert planned(lines(row()))[0]["agent_ref"] == {"name": "agent"}


def test_agent_ref_of_the_row_takes_precedence_and_is_unchanged() -> None:
    ref = {"type": "responses_api_agents", "name": "mine", "more": [1]}
    assert planned(lines(row(agent_ref=ref)))[0]["agent_ref"] == ref


def test_rows_without_an_agent_are_listed_with_both_solutions() -> None:
    rows = [row(), row(agent_ref={"name": "a"}), row(agent_ref={}), row(n=1)]
    message = refusal("\n" + lines(*rows), agent_name=None)
    assert "rows 0, 2, 3 " in message
    assert "+agent_name=" in message and "agent_ref" in message


def test_many_rows_without_an_agent_are_listed() -> None:
    message = refusal(lines(*(row(n=n) for n in range(500) if n != 250)), agent_name=None)
    assert "rows 0-498 " in message
    message = refusal(lines(*(row(n=n) for n in range(20))), agent_name=None)
    assert "rows 0-19 " in message
    rows = [row(n=n, **({"agent_ref": {"name": "a"}} if n % 2 else {})) for n in range(1000)]
    message = refusal(lines(*rows), agent_name=None)
    assert ", 396, 398, … (500 rows in all) " in message


def test_overrides_win_key_by_key_and_not_deeper() -> None:
    given = {
        "responses_create_params": {"input": "x", "temperature": 1, "reasoning": {"effort": "low", "s": 1}}
    }
    overrides = {"temperature": 0.5, "reasoning": {"effort": "high"}, "top_p": None}
    rows = planned(lines(given), responses_create_params=overrides)
    assert rows[0]["responses_create_params"] == {"input": "x", **overrides}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "not JSON"),
        ('{"a": 1} {"b": 2}', "not JSON"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "no responses_create_params"),
        ('{"responses_create_params": null}', "no responses_create_params"),
        ('{"responses_create_params": "text"}', "no responses_create_params"),
        ('{"responses_create_params": []}', "no responses_create_params"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_line_that_is_not_a_row_is_an_error_with_file_line_and_reason(line: str, reason: str) -> None:
    message = refusal(f"{A}\n\n{line}\n")
    assert message.startswith("in.jsonl:3: ")
    assert reason in message
    assert len(message) < 1000


def test_line_that_is_not_text_is_an_error_with_its_number() -> None:
    assert refusal(f"{A}\n".encode() + b'{"a": "\xff"}\n').startswith("in.jsonl:2: ")


def test_missing_input_is_an_error_that_says_where_it_was_searched_for(folder: Path) -> None:
    config = RolloutCollectionConfig(input_jsonl_fpath="gone.jsonl", output_jsonl_fpath="out.jsonl")
    with pytest.raises(ValueError) as refused:
        RolloutCollectionHelper()._preprocess_rows_from_config(config)
    assert "gone.jsonl" in str(refused.value) and str(folder) in str(refused.value)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_input_without_rows_is_refused(content: str) -> None:
    assert "in.jsonl" in refusal(content)


def test_relative_input_is_searched_under_the_component_roots(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(folder / "extra", {"data/rows.jsonl": f"{A}\n{B}\n"})
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder / "extra"))
    assert len(planned("", input_jsonl_fpath="data/rows.jsonl")) == 2


PROMPT = {"prompt.yaml": 'system: "Be {how}."\nuser: "{{{question}}} of {numbers}"'}


def test_prompt_builds_the_input_and_keeps_the_other_params() -> None:
    write_files(Path(), PROMPT)
    fields = {"how": "brief", "question": "{how}?", "numbers": [1, 2]}
    rows = planned(
        lines({**fields, "responses_create_params": {"temperature": 0.1}}, fields, fields | {"more": 1}),
        prompt_config="prompt.yaml",
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "{{how}?} of [1, 2]"},
    ]
    assert [one["responses_create_params"] for one in rows] == [
        {"temperature": 0.1, "input": messages},
        {"input": messages},
        {"input": messages},
    ]
    assert keys(rows) == [(0, 0), (1, 0), (2, 0)]
    assert all(fields.items() <= one.items() for one in rows)


def test_rows_that_have_an_input_conflict_with_a_prompt_all_in_one_error() -> None:
    write_files(Path(), {"prompt.yaml": "user: '{q}'"})
    rows = [row(q="a"), {"q": "b"}, row(q="c"), {"q": "d", "responses_create_params": {"input": []}}]
    message = refusal(lines(*rows), prompt_config="prompt.yaml", agent_name=None)
    assert "rows 0, 2, 3 " in message and "prompt_config" in message


def test_field_that_a_prompt_misses_is_named_with_the_fields_of_the_row() -> None:
    write_files(Path(), {"prompt.yaml": "user: '{answer}'"})
    message = refusal(lines({"answer": 1}, {"question": "a", "level": 2}), prompt_config="prompt.yaml")
    assert message.startswith("in.jsonl:2: ")
    assert "'answer'" in message and "question, level" in message
    assert "the line the" not in message


def test_prompt_comes_before_agent_and_overrides() -> None:
    write_files(Path(), {"prompt.yaml": "user: '{agent_ref}'"})
    assert "'agent_ref'" in refusal(lines({"q": 1}), prompt_config="prompt.yaml")
    write_files(Path(), {"prompt.yaml": "user: '{q}'"})
    rows = planned(lines({"q": 1}), prompt_config="prompt.yaml", responses_create_params={"input": "mine"})
    assert rows[0]["responses_create_params"] == {"input": "mine"}


UNTOUCHED = [
    '{"n": 123456789012345678901234567890}',
    '{"n": [1.0, -0.0, 1e300, 5e-324, 0.1, 18446744073709551616]}',
    '{"text": "\\u00e9 é 日本 \\u2028 \\ud83d\\ude00 😀 \\u0000 \\" \\\\ \\n"}',
    '{"text": "half of a pair: \\ud83d"}',
    '{"nothing": null, "": [], "no": {}, "yes": true}',
    '{"z": 1, "a": {"z": 1, "a": 2}, "m": 3}',
]


@pytest.mark.parametrize("fields", UNTOUCHED)
def test_values_of_a_row_are_unchanged(fields: str) -> None:
    line = fields[:-1] + ', "responses_create_params": {"input": "x", "metadata": ' + fields + "}}"
    [found] = planned(line + "\n")
    expected = {
        **json.loads(line), "agent_ref": {"name": "agent"}, "_ng_task_index": 0, "_ng_rollout_index": 0
    }  # fmt: skip
    assert json.dumps(found) == json.dumps(expected)  # also the order of keys and the types of numbers


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
params = st.dictionaries(st.sampled_from(["input", "temperature", "seed", "tools", "é"]), values)
some_rows = st.fixed_dictionaries(
    {"responses_create_params": params},
    optional={
        "agent_ref": st.sampled_from([{"name": "one"}, {"name": "two", "type": "x"}, {}, None]),
        "expected_answer": values,
        "_ng_rollout_index": st.integers(0, 5),
    },
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(some_rows, min_size=1, max_size=6),
    copies=st.lists(st.integers(0, 5), max_size=6),
    repeats=st.integers(1, 3) | st.none() | st.just({"one": 2, "_default": 1}),
    limit=st.none() | st.integers(1, 8),
    overrides=params,
    add_seed=st.booleans(),
)
def test_every_plan_is_the_rows_with_the_expected_changes(
    data: list[Row], copies: list[int], repeats: Any, limit: int | None, overrides: Row, add_seed: bool
) -> None:
    texts = [json.dumps(one) for one in data]
    texts += [texts[copy % len(texts)] for copy in copies]
    rows = planned(
        "\r\n".join(texts),
        num_repeats=repeats,
        limit=limit,
        responses_create_params=overrides,
        num_repeats_add_seed=add_seed,
    )
    expected: list[Row] = []
    tasks: dict[str, int] = {}
    rollouts: dict[int, int] = {}
    for text in texts[:limit]:
        one = json.loads(text)
        one.pop("_ng_rollout_index", None)
        ref = one["agent_ref"] if (one.get("agent_ref") or {}).get("name") else {"name": "agent"}
        task = tasks.setdefault(text, len(tasks))
        count = repeats.get(ref["name"], 1) if isinstance(repeats, dict) else repeats or 1
        for _ in range(count):
            index = rollouts[task] = rollouts.get(task, -1) + 1
            changed = one["responses_create_params"] | overrides | ({"seed": index} if add_seed else {})
            indices = {"_ng_task_index": task, "_ng_rollout_index": index}
            expected.append({**one, "responses_create_params": changed, "agent_ref": ref, **indices})
    assert rows == expected
    assert len(set(keys(rows))) == len(rows)
