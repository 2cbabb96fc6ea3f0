"""Bad input: one message with file, key and fix."""

import pytest

from nemo_gym.errors import ConfigError
from tests.gym.config.conftest import Load, Write


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a:\n  b: ???", "a.b"),
        ("a: {b: '${no.such}'}", "no.such (needed by a.b)"),
        ("a: {_inherit_from: nothing}", "a"),
        ("a: {_delete_key: nothing}", "a._delete_key"),
        ("a: {_copy: b, x: 1}\nb: 3", "a"),
        ("a: {responses_api_models: {m: {}}}", "a.responses_api_models.m.entrypoint"),
        (
            "a: {responses_api_agents: {m: {entrypoint: a, x: {type: responses_api_agents, name: z}}}}",
            "a.responses_api_agents.m.x",
        ),
    ],
)
def test_error_names_file_and_key(write: Write, load: Load, text: str, key: str) -> None:
    path = write("bad.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load("+config_paths=bad.yaml")
    message = str(caught.value)
    assert f"(in {path})" in message
    assert key in message
    assert caught.value.exit_code == 2
