import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config.resolve import resolve
from nemo_gym.errors import ConfigError, ConfigMissingValuesError, ConfigSyntaxError
from tests.gym.config.conftest import Load, Write

VALUES: dict[str, Any] = {
    "text": "some text",
    "none": None,
    "yes": True,
    "small": 1e-05,
    "list": [1, {"x": "${text}"}],
    "map": {"a": 1, "same": "${.a}", "up": "${..text}"},
    "via": "${map}",
}
SCALARS = ("text", "none", "yes", "small", "list.0", "list.1.x", "map.a", "map.up", "via.a")
PIECES = st.one_of(
    st.sampled_from([f"${{{name}}}" for name in SCALARS]),
    st.sampled_from(
        ["a", " ", "$", "}", "{", ":", "\\", "é", "${oc.decode:'[1]'}", "${ text }", "${map[a]}"]
    ),
)


TEXTS = st.lists(PIECES, max_size=4).map("".join) | st.sampled_from(
    ["${map}", "${via}", "${list}", "${list.1}"]
)


@given(TEXTS)
def test_texts_resolve_as_omegaconf_resolves_them(text: str) -> None:
    try:
        expected = OmegaConf.to_container(OmegaConf.create({**VALUES, "key": text}), resolve=True)
    except Exception:
        with pytest.raises(ConfigError):
            resolve({**VALUES, "key": text})
    else:
        assert resolve({**VALUES, "key": text}) == expected


def test_environment_variables_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_URL", "http://x")
    monkeypatch.delenv("NO_URL", raising=False)
    values = {"a": "${oc.env:SOME_URL}/v1", "b": "${oc.env:NO_URL,fallback}", "c": "${a}"}
    assert resolve(values) == {"a": "http://x/v1", "b": "fallback", "c": "http://x/v1"}


def test_every_missing_value_is_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_URL", raising=False)
    values = {
        "a": {"b": ["???", {"c": "${no.such}"}]},
        "d": "???",
        "e": "x${d}",
        "f": "${oc.env:NO_URL}",
        "g": "${oc.decode:${nor.this}}",
        "h": "${d.deeper}",
    }
    with pytest.raises(ConfigMissingValuesError) as caught:
        resolve(values)
    message = str(caught.value)
    assert message.startswith("5 values are missing:\n")
    assert "\n  a.b.0\n" in message
    assert "\n  no.such (needed by a.b.1.c)\n" in message
    assert "\n  d (needed by e, h)\n" in message
    assert "\n  nor.this (needed by g)\n" in message
    assert "environment variable NO_URL: not set (needed by f); export NO_URL=<value>" in message
    assert "+a.b.0=<value>, or in env.yaml" in message


def test_one_missing_value_reads_as_one() -> None:
    with pytest.raises(ConfigMissingValuesError, match=r"^1 value is missing:\n  a\n.*\+a=<value>"):
        resolve({"a": "???"})


def test_key_of_the_endpoint_is_not_asked_for_on_the_command_line() -> None:
    variable = "set policy_api_key in env.yaml or in the environment variable POLICY_API_KEY"
    with pytest.raises(ConfigMissingValuesError) as only:
        resolve({"key": "${policy_api_key}"})
    assert variable in str(only.value) and "command line" not in str(only.value)
    with pytest.raises(ConfigMissingValuesError) as both:
        resolve({"key": "${policy_api_key}", "url": "${policy_base_url}"})
    assert variable in str(both.value) and "+policy_base_url=<value>" in str(both.value)


@pytest.mark.parametrize(
    ("values", "circle"),
    [
        ({"a": "${a}"}, "a -> a"),
        ({"a": "${b}", "b": "x${a}"}, "a -> b -> a"),
        ({"a": {"b": "${a}"}}, "a -> a"),
        ({"a": {"b": "${c}"}, "c": {"d": "${a}"}}, "c -> a -> c"),
    ],
)
def test_circular_interpolation_is_an_error_that_shows_the_circle(
    values: dict[str, Any], circle: str
) -> None:
    with pytest.raises(ConfigError, match=f"^circular interpolation: {circle}; remove one"):
        resolve(values)


def test_data_without_interpolations_does_not_load_omegaconf() -> None:
    code = (
        "import sys; from nemo_gym.config.resolve import resolve\n"
        "assert resolve({'a': {'b': [1, 'text', None]}}) == {'a': {'b': [1, 'text', None]}}\n"
        "assert 'omegaconf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_key_that_omegaconf_does_not_accept_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="Incompatible key type"):
        resolve({"a": "${b}", "b": 1, None: 2})  # type: ignore[dict-item]


def test_invalid_interpolation_is_reported_with_its_key() -> None:
    with pytest.raises(ConfigSyntaxError, match=r"a\.b: .*\$\{x.*not a valid interpolation; write \$\{key\}"):
        resolve({"a": {"b": "p${x"}})


def test_unknown_resolver_is_reported_with_its_key() -> None:
    with pytest.raises(
        ConfigError, match=r"a: '\$\{nope:1\}' cannot be resolved: Unsupported interpolation type nope"
    ):
        resolve({"a": "${nope:1}"})


def test_missing_values_are_set_from_env_yaml_or_command_line(write: Write, load: Load) -> None:
    write("a.yaml", "x: ???\ny: ???\nz: ${x}/${y}")
    with pytest.raises(ConfigMissingValuesError, match=r"x \(needed by z\)"):
        load("+config_paths=a.yaml")
    write("env.yaml", "x: 1")
    assert load("+config_paths=a.yaml", "+y=2").data["z"] == "1/2"
