from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config import Overrides, overrides_from, parse_arguments
from nemo_gym.errors import ConfigSyntaxError


@pytest.mark.parametrize(
    "argv",
    [
        ["+limit=3"],
        ["++limit=3"],
        ["limit=3"],
        ["--limit", "3"],
        ["--limit=3"],
        ["+limit=1", "--limit", "2", "limit=3"],
    ],
)
def test_all_spellings_are_equivalent_and_the_last_wins(argv: list[str]) -> None:
    overrides = parse_arguments(argv)
    assert overrides.values == {"limit": 3}
    assert overrides.texts == {"limit": "3"}


def test_dotted_keys_nest_and_merge() -> None:
    overrides = parse_arguments(["+a.b.c=1", "+a.b.d=[x,y]", "+a.e={f: 2}", "--a.e.g", "null"])
    assert overrides.values == {"a": {"b": {"c": 1, "d": ["x", "y"]}, "e": {"f": 2, "g": None}}}


def test_setting_a_parent_again_forgets_the_texts_below() -> None:
    overrides = parse_arguments(["+a.b=1", "+a=2"])
    assert (overrides.values, overrides.texts) == ({"a": 2}, {"a": "2"})


def test_tilde_deletes() -> None:
    assert parse_arguments(["~a.b", "~c"]).deletions == ("a.b", "c")


def test_hyphens_of_the_first_part_of_an_option_are_underscores() -> None:
    assert parse_arguments(["--num-repeats", "2", "--a-b.c-d=1"]).values == {
        "num_repeats": 2,
        "a_b": {"c-d": 1},
    }


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        (["--resume"], {"resume": True}),
        (["--resume", "--limit", "3"], {"resume": True, "limit": 3}),
        (["--resume", "+limit=3"], {"resume": True, "limit": 3}),
        (["--resume", "limit=3"], {"resume": True, "limit": 3}),
        (["--resume", "false", "limit=3"], {"resume": False, "limit": 3}),
        (["--resume=false"], {"resume": False}),
        (["--other"], {"other": True}),
        (["--other", "--limit", "-1"], {"other": True, "limit": -1}),
    ],
)
def test_flags_work_with_or_without_a_value(argv: list[str], values: dict[str, Any]) -> None:
    assert parse_arguments(argv, flag_fields={"resume"}).values == values


AS_IT_STANDS = [
    "a/*.jsonl,b/*.jsonl",
    "key=with=equals",
    "~/data/x.jsonl",
    "[draft] notes.jsonl",
    "#1",
    "Zoë/日本.jsonl",
    "1234_5678",
    "007",
    "1e5",
    "42",
    "true",
    "NaN",
    "range(1,3)",
    "glob(*)",
    "choice(a,b)",
    "[a,b]",
    "{a: 1}",
    "None",
    "it's",
    'say "hi',
    "a b",
    "$HOME/x",
    "a: b",
    "100%",
    "",
]


@pytest.mark.parametrize("text", AS_IT_STANDS)
@pytest.mark.parametrize("spelling", ["+{}={}", "{}={}", "--{}={}"])
def test_text_of_a_string_field_is_unchanged(text: str, spelling: str) -> None:
    argument = spelling.format("name", text)
    assert parse_arguments([argument], string_fields={"name"}).values == {"name": text}


@pytest.mark.parametrize(
    "key",
    [
        "policy_base_url",
        "policy_api_key",
        "policy_model_name",
        "hf_token",
        "judge.api_key",
        "x.client-secret",
    ],
)
def test_usual_settings_and_secrets_are_strings_always(key: str) -> None:
    value = OmegaConf.select(OmegaConf.create(parse_arguments([f"+{key}=1234_5678"]).values), key)
    assert value == "1234_5678"


def test_dotted_string_field_is_recognized_by_its_full_key() -> None:
    values = parse_arguments(["+a.name=1e5", "+b.name=1e5"], string_fields={"a.name"}).values
    assert values == {"a": {"name": "1e5"}, "b": {"name": 100000.0}}


def test_null_is_none_only_unquoted() -> None:
    assert parse_arguments(["+name=null"], {"name"}).values == {"name": None}
    assert parse_arguments(["+name='null'"], {"name"}).values == {"name": "null"}
    assert parse_arguments(["--name", "null"], {"name"}).values == {"name": None}


def test_quoted_text_is_unquoted() -> None:
    assert parse_arguments(["+name='a, b'", '+other="c=d"'], {"name"}).values == {
        "name": "a, b",
        "other": "c=d",
    }


@given(st.text())
def test_any_unicode_text_of_a_string_field_is_kept(text: str) -> None:
    assume(text == text.strip(" \t") and text != "null")
    assume(not any(mark in text for mark in "'\"\\"))  # Hydra's rules for quotes and escapes apply
    assume("(" not in text)  # functions of Hydra's grammar: str(3), lower(A)
    assert parse_arguments([f"+name={text}"], string_fields={"name"}).values == {"name": text}
    assert parse_arguments([f"--name={text}"], string_fields={"name"}).texts == {"name": text}


def test_unknown_key_gets_the_parsed_value_or_the_text() -> None:
    argv = ["+a=1e5", "+b=x,y", "+c=~/x", "+d=1_000", "+e=k=v", "+f=[1,2]", "+g=true"]
    assert parse_arguments(argv).values == {
        "a": 100000.0,
        "b": "x,y",
        "c": "~/x",
        "d": 1000,
        "e": "k=v",
        "f": [1, 2],
        "g": True,
    }


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("[a.yaml,b/c.yaml]", ["a.yaml", "b/c.yaml"]),
        ("a.yaml,b/c.yaml", ["a.yaml", "b/c.yaml"]),
        ("[~/a.yaml, é.yaml]", ["~/a.yaml", "é.yaml"]),
        ("~/a.yaml,b.yaml", ["~/a.yaml", "b.yaml"]),
        ("['a b.yaml',~/c.yaml]", ["a b.yaml", "~/c.yaml"]),
    ],
)
def test_config_paths_accept_all_list_syntaxes(text: str, paths: list[str]) -> None:
    assert parse_arguments([f"+config_paths={text}"]).values == {"config_paths": paths}


def test_config_paths_accept_a_single_path() -> None:
    assert parse_arguments(["+config_paths=a.yaml"]).values == {"config_paths": "a.yaml"}


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("limit", "has no `=`"),
        ("-h", "has no `=`"),
        ("=3", "has no key"),
        ("+=3", "has no key"),
        ("--", "has no key"),
        ("~", "has no key"),
        ("a b=3", "'a b' is not a valid key"),
        ("a..b=3", "'a..b' is not a valid key"),
        (".a=3", "'.a' is not a valid key"),
        ("+++a=3", "'+a' is not a valid key"),
    ],
)
def test_argument_that_cannot_be_read_is_quoted_with_an_example(argument: str, reason: str) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_arguments([argument])
    assert f"argument {argument!r}" in str(caught.value)
    assert reason in str(caught.value)
    assert "for example +limit=3" in str(caught.value)


def test_deletion_with_a_value_is_refused() -> None:
    with pytest.raises(ConfigSyntaxError, match=r"'~a=1': a deletion has no value; write ~a"):
        parse_arguments(["~a=1"])


def test_python_callers_may_pass_mappings_or_texts() -> None:
    assert overrides_from({"a.b": "1,2", "a": {"c": (1,)}}).values == {"a": {"b": "1,2", "c": [1]}}
    assert overrides_from(OmegaConf.create({"a": {"b": 1}})).values == {"a": {"b": 1}}
    assert overrides_from(["+a=1", "~b"]) == parse_arguments(["+a=1", "~b"])
    assert overrides_from(None) == Overrides()
    assert overrides_from(Overrides({"a": 1})).values == {"a": 1}
