import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_gym.config.grammar import parse_by_grammar, parse_plain

ALPHABET = "abAB_./-+09:,[]e nulltruefalsinNF"
WORDS = st.sampled_from(
    ["true", "False", "null", "nan", "-inf", "Inf", "0", "00", "-1", "1.5", ".5", "1e5", "./a/b"]
)
ITEMS = st.text(ALPHABET, max_size=6) | WORDS
TEXTS = st.one_of(
    ITEMS,
    st.lists(ITEMS, min_size=1, max_size=3).map(lambda items: f"[{','.join(items)}]"),
    st.lists(ITEMS, min_size=2, max_size=3).map(",".join),
    st.from_regex(r"https?://[A-Za-z0-9_./:-]*", fullmatch=True),
)


def same(one: Any, two: Any) -> bool:
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return type(one) is type(two) and one == two


@given(TEXTS)
@example("[a,null,3]")
@example("a,b/c.yaml")
@example("/1")
@example("999999999999999999")
def test_fast_parser_agrees_with_the_grammar(text: str) -> None:
    plain = parse_plain(text)
    if plain is not None:
        parsed = parse_by_grammar(text)
        assert same(plain.value, parsed.value)
        assert plain.literal == parsed.literal


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "resources_servers/x/configs/x.yaml",
        "3",
        "-2",
        "0.5",
        "true",
        "null",
        "[a.yaml,b.yaml]",
        "http://x:8/v1",
    ],
)
def test_common_values_do_not_load_the_parser(text: str) -> None:
    assert parse_plain(text) is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}),
        ("'a, b'", "a, b"),
        ("1e5", 100000.0),
        ("007", "007"),
        ("int(3)", 3),
        ("a\\,b", "a,b"),
        ("", ""),
    ],
)
def test_grammar_decides_the_others(text: str, value: object) -> None:
    parsed = parse_by_grammar(text)
    assert (parsed.value, parsed.literal) == (value, False)


@pytest.mark.parametrize(
    "text", ["a,b", "range(1,3)", "choice(a,b)", "glob(*)", "~/x", "a=b", "[a", "é", "nope(1)", "[" * 999]
)
def test_text_is_kept_if_the_grammar_rejects_or_sweeps_it(text: str) -> None:
    parsed = parse_by_grammar(text)
    assert (parsed.value, parsed.literal) == (text, True)
