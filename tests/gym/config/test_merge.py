from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.config.merge import deep_merge
from nemo_gym.errors import ConfigError

# Leaves and mappings have different keys: no value changes from one to the other.
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just("???"), st.lists(st.integers(), max_size=2)
)
TREES = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3),
    lambda below: st.fixed_dictionaries({}, optional={"a": LEAVES, "b": LEAVES, "x": below, "y": below}),
    max_leaves=12,
)


@given(TREES, TREES, TREES)
def test_merging_is_associative(one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]) -> None:
    assert deep_merge(deep_merge(one, two), three) == deep_merge(one, deep_merge(two, three))


@given(TREES, TREES)
def test_later_value_wins_and_other_values_are_kept(base: dict[str, Any], top: dict[str, Any]) -> None:
    merged = deep_merge(base, top)
    assert set(merged) == set(base) | set(top)
    for key, value in top.items():
        if not isinstance(value, dict) and value != "???":
            assert merged[key] == value
    for key in base.keys() - top.keys():
        assert merged[key] == base[key]


@given(TREES, TREES)
def test_comparison_changes_neither_file(base: dict[str, Any], top: dict[str, Any]) -> None:
    before = repr((base, top))
    deep_merge(base, top)
    assert repr((base, top)) == before


@given(TREES)
def test_empty_and_self_are_neutral(tree: dict[str, Any]) -> None:
    assert deep_merge(tree, {}) == deep_merge({}, tree) == deep_merge(tree, tree) == tree


def test_missing_marker_does_not_hide_a_value() -> None:
    assert deep_merge({"a": 1, "b": {"c": 1}}, {"a": "???", "b": "???", "d": "???"}) == {
        "a": 1,
        "b": {"c": 1},
        "d": "???",
    }


def test_null_and_lists_replace() -> None:
    assert deep_merge({"a": {"b": 1}, "c": [1, 2]}, {"a": None, "c": []}) == {"a": None, "c": []}


def test_item_of_a_list_is_addressed_by_position() -> None:
    assert deep_merge({"a": [{"x": 1}, 2]}, {"a": {"0": {"y": 2}}}) == {"a": [{"x": 1, "y": 2}, 2]}
    with pytest.raises(ConfigError, match="no item 5 in a list of 1"):
        deep_merge({"a": [1]}, {"a": {"5": 1}})


def test_mapping_over_a_directive_keeps_the_directive() -> None:
    assert deep_merge({"a": "${inherit_from:b.c}"}, {"a": {"x": 1}}) == {
        "a": {"_inherit_from": "b.c", "x": 1}
    }
    assert deep_merge({"a": "${ copy: b }"}, {"a": {"x": 1}}) == {"a": {"_copy": "b", "x": 1}}


def test_deletions_accumulate_and_a_key_set_later_is_kept() -> None:
    assert deep_merge({"_delete_key": "x"}, {"_delete_key": ["y"]}) == {"_delete_key": ["x", "y"]}
    assert deep_merge({"x": {"old": 1}, "_delete_key": "x"}, {"x": {"new": 1}}) == {
        "x": {"new": 1},
        "_delete_key": [],
    }
