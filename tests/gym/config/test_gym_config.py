from base64 import b64encode

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ReadonlyConfigError

from nemo_gym.config import (
    GymConfig,
    assign_ports,
    config_from_bytes,
    dump_config,
    load_config,
    parse_arguments,
)
from nemo_gym.errors import ConfigError, ServerRefNotFoundError
from tests.gym.config.conftest import Load, Write

SECRET = "sk-5Tq9XzQ"


@pytest.fixture
def config(two_files: str, load: Load) -> GymConfig:
    return load(
        two_files, f"+policy_base_url=http://me:{SECRET}@host/v1", f"+policy_api_key={SECRET}", "+limit=007"
    )


def test_values_are_a_resolved_read_only_dictconfig(config: GymConfig) -> None:
    assert isinstance(config.values, DictConfig)
    assert config.values.policy_model.responses_api_models.openai_model.openai_api_key == SECRET
    assert OmegaConf.to_container(config.values, resolve=False) == config.data
    with pytest.raises(ReadonlyConfigError):
        config.values.limit = 3


def test_configuration_contains_the_default_address_of_the_head_server(config: GymConfig, load: Load) -> None:
    assert (config.head_server.host, config.head_server.port) == ("127.0.0.1", 11000)
    assert config.values.head_server == {"host": "127.0.0.1", "port": 11000}
    assert load("+head_server.port=11234").head_server.port == 11234


def test_texts_are_kept(config: GymConfig) -> None:
    assert config.texts["limit"] == "007"


def test_unknown_server_is_named_with_close_matches(config: GymConfig) -> None:
    with pytest.raises(
        ServerRefNotFoundError, match=r"no server 'calc_agnt' in the configuration; did you mean calc_agent"
    ):
        config.server("calc_agnt")


def test_yaml_shows_no_secret_unless_asked(config: GymConfig) -> None:
    text = config.to_yaml()
    assert SECRET not in text
    assert yaml.safe_load(text) == config.masked()
    assert config.masked()["policy_api_key"] == "****"
    assert yaml.safe_load(config.to_yaml(masked=False)) == config.data
    assert SECRET in config.secrets
    assert b64encode(f"me:{SECRET}".encode()).decode() in config.secrets


def test_config_is_unchanged_in_a_child_process(config: GymConfig, write: Write, load: Load) -> None:
    config = assign_ports(config)
    assert config_from_bytes(dump_config(config)) == config
    write("odd.yaml", 'numbers: {1: a, 2: {3: .inf}}\ntext: "\\U0001F600 ${numbers}"')
    odd = load("+config_paths=odd.yaml")
    copy = config_from_bytes(dump_config(odd))
    assert copy == odd
    assert copy.values.numbers[1] == "a"


def test_layer_on_top_changes_a_copy(config: GymConfig) -> None:
    changed = config.with_layer({"calc": {"resources_servers": {"calculator": {"port": 12}}}, "limit": 1})
    assert (changed.server("calc").port, changed.data["limit"]) == (12, 1)
    assert (config.server("calc").port, config.data["limit"]) == (None, "007")


def test_text_that_looks_like_an_interpolation_once_resolved_stays_text(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_KEY", r"a\${b}${c")
    config = load("+x=${oc.env:ODD_KEY}")
    assert config.data["x"] == config.values.x == r"a\${b}${c"


def test_defaults_are_below_everything(write: Write) -> None:
    write("a.yaml", "x: file")
    config = load_config("a.yaml", defaults={"x": "default", "y": {"z": "default"}})
    assert (config.data["x"], config.data["y"]) == ("file", {"z": "default"})


def test_working_directory_can_be_set(write: Write, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "a.yaml").write_text("x: 1")
    (folder / "env.yaml").write_text("config_paths: a.yaml\ny: 2")
    config = load_config(working_dir=folder)
    assert (config.data["x"], config.data["y"]) == (1, 2)


def test_secrets_do_not_show_in_the_representation(config: GymConfig) -> None:
    assert SECRET not in repr(config)
    assert SECRET not in repr(parse_arguments([f"+policy_api_key={SECRET}"]))
    with pytest.raises(ConfigError) as caught:
        parse_arguments([f"+my api_key={SECRET}"])
    assert SECRET not in str(caught.value)


def test_instance_names_may_contain_dots(write: Write, load: Load) -> None:
    write("a.yaml", "qwen2.5: {responses_api_models: {m: {entrypoint: app.py}}}")
    config = assign_ports(load("+config_paths=a.yaml"))
    assert config.server("qwen2.5").port == config.data["qwen2.5"]["responses_api_models"]["m"]["port"]


def test_text_settings_keep_their_text(load: Load) -> None:
    assert load("+default_host=1234").data["default_host"] == "1234"
