import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.prompt import (
    PromptConfig,
    apply_prompt_to_row,
    fill_prompt,
    load_prompt_config,
    materialize_prompts,
    validate_prompt_compatibility,
)

ASK = PromptConfig(user="Question: {question}")


def filled(template: str, row: Mapping[str, Any]) -> str:
    """The user message of a template."""
    return fill_prompt(PromptConfig(user=template), row)[0]["content"]


def write_prompt(folder: Path, text: str) -> Path:
    path = folder / "prompt.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def write_lines(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_system_message_comes_before_the_user_message() -> None:
    prompt = PromptConfig(system="You know {topic}.", user="{question}")
    assert fill_prompt(prompt, {"topic": "sums", "question": "1 + 1?"}) == [
        {"role": "system", "content": "You know sums."},
        {"role": "user", "content": "1 + 1?"},
    ]


def test_without_a_system_template_there_is_no_system_message() -> None:
    assert fill_prompt(ASK, {"question": "Why?"}) == [{"role": "user", "content": "Question: Why?"}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is \n {x} {{", "as it is \n {x} {{"),
        (7, "7"),
        (0.5, "0.5"),
        (10**30, str(10**30)),
        (True, "true"),
        (None, "null"),
        ([1, "é"], '[1, "é"]'),
        ({"a": {"b": [True]}}, '{"a": {"b": [true]}}'),
    ],
)
def test_template_inserts_strings_unchanged_and_other_values_as_json(value: object, text: str) -> None:
    assert filled("<{value}>", {"value": value}) == f"<{text}>"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{}}", "{}"),
        ("{{a}}", "{a}"),
        ("{{{a}}}", "{1}"),
        (r"\boxed{{{a}}}", r"\boxed{1}"),
        ('{{"a": {a}}}', '{"a": 1}'),
        ("{a}{a}", "11"),
        ("nothing to fill", "nothing to fill"),
        ("{two words} {first-line} {é} {0}", "2 3 4 5"),
    ],
)
def test_doubled_braces_are_literal_and_names_may_be_any_text(template: str, text: str) -> None:
    assert filled(template, {"a": 1, "two words": 2, "first-line": 3, "é": 4, "0": 5}) == text


@given(st.text(st.sampled_from("ab{} \n"), max_size=12))
def test_templates_follow_str_format(template: str) -> None:
    row = {"a": "A{b}", "b": "}", "ab": "{{", "ba": "", "aa": "é", "bb": "B"}
    try:
        expected = template.format_map(row)
    except (KeyError, ValueError, IndexError):
        with pytest.raises(ValueError):
            filled(template, row)
    else:
        assert filled(template, row) == expected


def test_values_with_braces_are_never_expanded_again() -> None:
    assert filled("{a}{b}", {"a": "{b}", "b": "{a}"}) == "{b}{a}"


def test_missing_field_is_named_beside_the_fields_of_the_row() -> None:
    with pytest.raises(ConfigError, match=r"no field 'answer'.*; it has id, question;"):
        filled("{question} {answer}", {"id": 1, "question": "Why?"})
    with pytest.raises(ConfigError, match="no fields"):
        filled("{answer}", {})


BAD_TEMPLATES = {
    "{": "`{` is unmatched",
    "a } b": "`}` is unmatched",
    "{a": "`{` is unmatched",
    "{{a}": "`}` is unmatched",
    "{a{b}}": "`{` is unmatched",
    "{}": "`{}` has no field name",
    "{a.b}": "'{a.b}' contains more than a field name",
    "{a[0]}": "'{a[0]}' contains more than a field name",
    "{a:>5}": "'{a:>5}' contains more than a field name",
    "{a!r}": "'{a!r}' contains more than a field name",
    "{ a }": "'{ a }' contains more than a field name",
    "{ }": "'{ }' contains more than a field name",
}


@pytest.mark.parametrize("template", BAD_TEMPLATES)
@pytest.mark.parametrize("role", ["user", "system"])
def test_template_that_is_more_than_fields_is_refused_when_loaded(
    tmp_path: Path, template: str, role: str
) -> None:
    path = write_prompt(tmp_path, json.dumps({"user": "x", role: f"first line\n{template}"}))
    expected = f"{path}: '{role}': line 2 of the template: {BAD_TEMPLATES[template]}; write {{name}}"
    with pytest.raises(ConfigError, match=re.escape(expected)) as refused:
        load_prompt_config(path)
    assert "\n" not in str(refused.value)


def test_bad_template_built_in_python_is_refused() -> None:
    with pytest.raises(ValidationError, match="has no field name"):
        PromptConfig(user="{}")
    with pytest.raises(ValidationError, match="sytem"):
        PromptConfig.model_validate({"user": "x", "sytem": "y"})


BAD_FILES = {
    "": "'user' is missing; for example",
    "system: x": "'user' is missing; for example",
    "user: x\nsytem: y": "unknown key 'sytem'; a prompt has 'user' and, optionally, 'system'",
    "user: 42": "'user' is a int, not text",
    "user: x\nsystem: [1]": "'system' is a list, not text",
    "- user": "not a mapping",
    "user: [x": "expected",
    "user: x\nuser: y": "duplicate key",
    "1: x\nuser: y": "should be strings",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_error_for_a_wrong_prompt_file_names_file_and_problem(tmp_path: Path, text: str) -> None:
    path = write_prompt(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_prompt_config(path)
    assert str(refused.value).startswith(f"{path}:")
    assert BAD_FILES[text] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_prompt_file_is_named_with_the_folders_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"'prompts/gone.yaml': no such file in .*{tmp_path}"):
        load_prompt_config("prompts/gone.yaml")
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        load_prompt_config("x" * 300)


def test_relative_prompt_file_is_found_under_the_component_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "extra").mkdir()
    write_prompt(tmp_path / "extra", "user: |-\n  Ask: {question}\nsystem:\n")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path / "extra"))
    assert load_prompt_config("prompt.yaml") == PromptConfig(user="Ask: {question}", system=None)


def test_prompt_becomes_the_input_and_everything_else_is_kept() -> None:
    row = {"question": "Why?", "id": 3, "responses_create_params": {"temperature": 0.5, "tools": [{}]}}
    before = copy.deepcopy(row)
    made = apply_prompt_to_row(row, ASK)
    assert made == {
        "question": "Why?",
        "id": 3,
        "responses_create_params": {
            "temperature": 0.5,
            "tools": [{}],
            "input": [{"role": "user", "content": "Question: Why?"}],
        },
    }
    assert row == before


@pytest.mark.parametrize("row", [{"question": "Why?"}, {"question": "Why?", "responses_create_params": None}])
def test_row_without_params_gets_them(row: dict[str, Any]) -> None:
    made = apply_prompt_to_row(row, ASK)
    assert made["responses_create_params"] == {"input": [{"role": "user", "content": "Question: Why?"}]}


def test_params_that_are_not_an_object_are_refused() -> None:
    with pytest.raises(ConfigError, match="responses_create_params is a list, not an object"):
        apply_prompt_to_row({"question": "Why?", "responses_create_params": []}, ASK)


def test_every_row_that_has_an_input_is_listed_in_one_error() -> None:
    free: list[dict[str, Any]] = [
        {},
        {"responses_create_params": {}},
        {"responses_create_params": {"input": None}},
    ]
    taken = {"responses_create_params": {"input": "hello"}}
    validate_prompt_compatibility(free, ASK)
    with pytest.raises(ConfigError, match=r"in rows 1, 4, 5 \(counted from 0\)"):
        validate_prompt_compatibility([free[0], taken, *free[1:], taken, taken])
    with pytest.raises(ConfigError, match=r"in row 0 \(counted from 0\)"):
        validate_prompt_compatibility(iter([taken]), ASK)


def test_every_row_of_a_file_gets_its_prompt(tmp_path: Path) -> None:
    questions = write_lines(tmp_path / "in.jsonl", {"question": "é?"}, "", {"question": "b", "n": 2**70}, " ")
    output = tmp_path / "deep" / "er" / "out.jsonl"
    assert materialize_prompts(questions, output, ASK) == 2
    rows = read_lines(output)
    assert [row["responses_create_params"]["input"][0]["content"] for row in rows] == [
        "Question: é?",
        "Question: b",
    ]
    assert rows[1]["n"] == 2**70
    assert list(output.parent.iterdir()) == [output]


def test_prompt_may_be_named_by_its_file_and_an_older_output_is_replaced(tmp_path: Path) -> None:
    questions = write_lines(tmp_path / "in.jsonl", {"question": "a"})
    output = write_lines(tmp_path / "out.jsonl", "older", "lines")
    assert materialize_prompts(questions, output, write_prompt(tmp_path, "user: '{question}'")) == 1
    assert read_lines(output)[0]["responses_create_params"]["input"][0]["content"] == "a"


BAD_ROWS = {
    "not json": ('{"a": nil}', ":3: not JSON: Expecting value: column 7 "),
    "not an object": ("[1]", ":3: a list, not a JSON object"),
    "too deep": ("[" * 100_000, ":3: not JSON: "),
    "missing field": ('{"q": 1}', ":3: the row has no field 'question', which the prompt uses; it has q;"),
    "params": ('{"question": "c", "responses_create_params": 1}', ":3: responses_create_params is a int"),
    "conflict": (
        '{"responses_create_params": {"input": []}}',
        ": responses_create_params.input is already set",
    ),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_row_leaves_the_output_unchanged(tmp_path: Path, kind: str) -> None:
    line, expected = BAD_ROWS[kind]
    questions = write_lines(tmp_path / "in.jsonl", {"question": "a"}, "", line, {"question": "b"})
    output = write_lines(tmp_path / "out.jsonl", "older")
    with pytest.raises(ConfigError, match=re.escape(f"{questions}{expected}")) as refused:
        materialize_prompts(questions, output, ASK)
    assert "\n" not in str(refused.value)
    assert output.read_text() == "older\n"
    assert sorted(tmp_path.iterdir()) == [questions, output]


def test_all_conflicts_of_a_file_are_reported_together(tmp_path: Path) -> None:
    taken = {"responses_create_params": {"input": "hello"}}
    questions = write_lines(tmp_path / "in.jsonl", {"question": "a"}, "", taken, {"question": "b"}, taken)
    with pytest.raises(ConfigError, match=r"in rows 1, 3 \(counted from 0\)"):
        materialize_prompts(questions, tmp_path / "out.jsonl", ASK)


def test_output_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    questions = write_lines(tmp_path / "in.jsonl", {"question": "a"})
    linked = tmp_path / "linked.jsonl"
    linked.symlink_to(questions)
    for output, expected in (
        (questions, "same file"),
        (linked, "same file"),
        (tmp_path, "not a file"),
        (Path("/dev/null"), "not a file"),
        (questions / "below.jsonl", "cannot write"),
        (tmp_path / ("x" * 300), "cannot write"),
    ):
        with pytest.raises(ConfigError, match=expected):
            materialize_prompts(questions, output, ASK)
    assert read_lines(questions) == [{"question": "a"}]


def test_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"input '.*gone.jsonl': no such file; check"):
        materialize_prompts(tmp_path / "gone.jsonl", tmp_path / "out.jsonl", ASK)
    assert list(tmp_path.iterdir()) == []
