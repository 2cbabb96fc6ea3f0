from pathlib import Path

import pytest

from nemo_gym.config.yaml_file import load_yaml, load_yaml_file
from nemo_gym.errors import ConfigError, ConfigSyntaxError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.yaml"


def test_numbers_read_as_omegaconf_reads_them() -> None:
    text = "{a: 1e-3, b: 1E5, c: .5, d: 1_000, e: -2.5, f: .inf, g: 007x, h: 2024-01-01, i: 1.2.3}"
    expected = {"a": 0.001, "b": 1e5, "c": 0.5, "d": 1000, "e": -2.5, "f": float("inf")}
    assert load_yaml(text, "t") == {**expected, "g": "007x", "h": "2024-01-01", "i": "1.2.3"}


def test_empty_file_is_an_empty_mapping(path: Path) -> None:
    path.write_text("# nothing\n")
    assert load_yaml_file(path) == {}


def test_byte_order_mark_and_non_ascii_are_read(path: Path) -> None:
    path.write_bytes("\ufeffname: Zoë\n".encode())
    assert load_yaml_file(path) == {"name": "Zoë"}


def test_top_level_list_is_refused(path: Path) -> None:
    path.write_text("- a\n")
    with pytest.raises(
        ConfigSyntaxError, match=r"a\.yaml:1:1: the top level is a list, not a mapping; write `key"
    ):
        load_yaml_file(path)


@pytest.mark.parametrize(
    ("text", "place", "reason", "fix"),
    [
        ("a: b: c\n", ":1:5: ", "mapping values are not allowed", "quote a value"),
        ("a:\n\tb: 1\n", ":2:1: ", "cannot start any token", "indent with spaces"),
        ("a: [1\n", ":2:1: ", "while parsing a flow sequence", "correct the YAML"),
        ("x:\n  a: 1\n  b: 2\n  a: 3\n", ":4:3: ", "duplicate key 'a', first in line 2", "rename one"),
        ("a: {b: ???}\n", ":1:8: ", "did not find expected node content", "quote ??? inside braces"),
        ("a: 1\n---\nb: 2\n", ":2:1: ", "expected a single document", "one document"),
        ("a: !!python/object:x.y {}\n", ":1:4: ", "could not determine a constructor", "remove the tag"),
        ("a: !!binary aGk=\n", ":1:1: ", "a: a value of type bytes is not allowed", "correct the YAML"),
        ("a: \x01\n", ":1:1: ", "characters are not allowed", "correct the YAML"),
        ("a: &a {b: *a}\n", ":1:1: ", "alias inside its own anchor", ""),
        ("[" * 5000 + "]" * 5000, ":1:1: ", "nested too deeply", ""),
    ],
)
def test_malformed_yaml_is_reported_with_place_reason_and_fix(
    path: Path, text: str, place: str, reason: str, fix: str
) -> None:
    path.write_text(text)
    with pytest.raises(ConfigSyntaxError) as caught:
        load_yaml_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}{place}")
    assert reason in message
    assert fix in message


def test_file_that_is_not_utf8_is_refused(path: Path) -> None:
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigSyntaxError, match="byte 3 is not UTF-8; save the file as UTF-8"):
        load_yaml_file(path)


def test_unreadable_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml_file(tmp_path)


def test_merge_keys_and_anchors_work_at_any_depth() -> None:
    text = """
    base: &base {x: 1, y: 1}
    outer:
      inner: &inner {<<: *base, x: 2}
    last: {<<: *inner, z: 3}
    """
    values = load_yaml(text, "t")
    assert values["outer"]["inner"] == {"x": 2, "y": 1}
    assert values["last"] == {"x": 2, "y": 1, "z": 3}
