from typing import Any

import pytest

from nemo_gym.config.directives import apply_directives, delete_path
from nemo_gym.config.yaml_file import load_yaml
from nemo_gym.errors import ConfigError, InheritPathNotFoundError
from tests.gym.config.conftest import Load, Write


def applied(text: str) -> dict[str, Any]:
    return apply_directives(load_yaml(text, "t"))


def test_inherit_from_moves_and_local_keys_lie_over_it() -> None:
    assert applied("{a: {x: 1, y: {p: 1}}, b: {_inherit_from: a, y: {q: 2}}}") == {
        "b": {"x": 1, "y": {"p": 1, "q": 2}}
    }


def test_copy_keeps_the_source() -> None:
    assert applied("{a: {x: 1}, b: {_copy: a, x: 2}}") == {"a": {"x": 1}, "b": {"x": 2}}


def test_text_forms_accept_any_value() -> None:
    assert applied("{a: {x: [1]}, b: '${copy:a.x}', c: '${copy:a}', d: '${copy:a.x.0}'}") == {
        "a": {"x": [1]},
        "b": [1],
        "c": {"x": [1]},
        "d": 1,
    }
    assert applied("{a: {x: null, y: 1}, b: '${inherit_from:a.x}'}") == {"a": {"y": 1}, "b": None}


def test_mappings_emptied_by_a_move_are_removed() -> None:
    assert applied(
        "{base: {kind: {impl: {x: 1}}}, mine: {kind: {impl: '${inherit_from:base.kind.impl}'}}}"
    ) == {"mine": {"kind": {"impl": {"x": 1}}}}


def test_several_nodes_inherit_from_one_source() -> None:
    assert applied("{a: {x: 1}, b: {_inherit_from: a}, c: {_inherit_from: a, y: 2}}") == {
        "b": {"x": 1},
        "c": {"x": 1, "y": 2},
    }


def test_chains_resolve_in_any_order() -> None:
    assert applied("{c: {_inherit_from: b, z: 3}, b: {_copy: a, y: 2}, a: {x: 1}}") == {
        "c": {"x": 1, "y": 2, "z": 3},
        "a": {"x": 1},
    }


def test_path_may_lead_through_another_directive() -> None:
    assert applied("{a: {x: {y: 1}}, b: '${inherit_from:a}', c: '${copy:b.x}', d: {_copy: b.x.y}}") == {
        "b": {"x": {"y": 1}},
        "c": {"y": 1},
        "d": 1,
    }


def test_directives_work_inside_lists_and_inside_local_keys() -> None:
    assert applied("{a: {x: 1}, b: ['${copy:a}'], c: {_copy: a, y: '${copy:a.x}'}}") == {
        "a": {"x": 1},
        "b": [{"x": 1}],
        "c": {"x": 1, "y": 1},
    }


def test_delete_key_removes_after_inheritance() -> None:
    text = "{a: {x: 1, y: 2, z: {p: 1, q: 2}}, b: {_inherit_from: a, _delete_key: 'x, z.p', w: 3}}"
    assert applied(text) == {"b": {"y": 2, "z": {"q": 2}, "w": 3}}
    assert applied("{a: {x: 1, y: 2, _delete_key: [x]}}") == {"a": {"y": 2}}
    assert applied("{a: 1, b: 2, _delete_key: a}") == {"b": 2}


def test_missing_marker_does_not_hide_an_inherited_value() -> None:
    assert applied("{a: {x: 1}, b: {_inherit_from: a, x: '???'}}") == {"b": {"x": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{b: {c: {_inherit_from: alpa.x}}, alpha: 1}",
            r"b\.c: inherit_from 'alpa\.x': 'alpa' not found; did you mean alpha",
        ),
        ("{b: '${copy:a.y}', a: {x: 1}}", r"b: copy 'a\.y': 'y' not found in a; known: x"),
        ("{b: '${copy:a.y}', a: 1}", "'y' not found in a; none are defined"),
    ],
)
def test_missing_path_is_reported_with_close_matches(text: str, message: str) -> None:
    with pytest.raises(InheritPathNotFoundError, match=message):
        applied(text)


@pytest.mark.parametrize(
    "text",
    [
        "{a: {_inherit_from: b}, b: {_copy: a}}",
        "{a: '${copy:a}'}",
        "{a: {x: '${copy:a}'}}",
        "{a: {_inherit_from: a.x, x: {y: 1}}}",
    ],
)
def test_circle_is_an_error_that_names_the_chain(text: str) -> None:
    with pytest.raises(ConfigError, match=r"circular .*: .*a.* -> .*; remove one"):
        applied(text)


def test_directive_with_an_unknown_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a\._copy: 3 is not a dotted path; write _copy: a\.b"):
        applied("{a: {_copy: 3}}")


def test_keys_cannot_lie_over_an_inherited_scalar() -> None:
    with pytest.raises(ConfigError, match=r"b: keys cannot be merged into an inherited int; remove \['x'\]"):
        applied("{a: 1, b: {_inherit_from: a, x: 1}}")


def test_deleting_a_missing_key_is_an_error_with_a_hint() -> None:
    with pytest.raises(
        ConfigError, match=r"a\._delete_key: no key 'entrypiont' to delete; did you mean entrypoint"
    ):
        applied("{a: {entrypoint: 1, _delete_key: entrypiont}}")


def test_tilde_deletes_and_waits_for_inheritance() -> None:
    values = load_yaml("{a: {x: 1, y: 2}, b: '${inherit_from:a}', c: {d: {e: 1, f: 2}}}", "t")
    values = delete_path(delete_path(values, "c.d.e"), "b.x")
    assert apply_directives(values) == {"b": {"y": 2}, "c": {"d": {"f": 2}}}
    with pytest.raises(ConfigError, match=r"~c\.d\.g: no key 'c\.d\.g'"):
        delete_path(values, "c.d.g")


def test_override_below_an_inheriting_node_keeps_the_inheritance(write: Write, load: Load) -> None:
    write("a.yaml", "base: {x: 1, y: 1}\nmine: ${inherit_from:base}")
    data = load("+config_paths=a.yaml", "+mine.y=2").data
    assert data["mine"] == {"x": 1, "y": 2}
    assert "base" not in data


def test_deleted_and_set_again_on_the_command_line(write: Write, load: Load) -> None:
    write("a.yaml", "x: {p: 1, q: 1}\ny: 1")
    data = load("+config_paths=a.yaml", "~x", "+x.r=2", "~y").data
    assert data["x"] == {"r": 2}
    assert "y" not in data
