"""Settings that nothing reads are refused; those that something may read are not."""

from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from nemo_gym.cli.main import COMMANDS
from nemo_gym.config import GymConfig, load_config, overrides_from, parse_arguments
from nemo_gym.config.known_settings import COMMAND_SETTINGS, GLOBAL_SETTINGS, AcceptedSettings
from nemo_gym.config.unknown import refuse_unknown_fields
from nemo_gym.errors import ConfigError
from nemo_gym.http import GlobalAIOHTTPAsyncClientConfig
from nemo_gym.rollout_collection import E2ERolloutCollectionConfig, RolloutCollectionConfig
from nemo_gym.setting_names import meant_settings
from tests.gym.config.conftest import Write

ACCEPTED = AcceptedSettings(tuple(RolloutCollectionConfig.model_fields), otherwise="see the list")
SERVER = """
calc:
  resources_servers:
    calculator: {entrypoint: app.py, domain: math, precision: 3, options: {}}
"""


def loaded(given: Any) -> GymConfig:
    return load_config(overrides=overrides_from(given), accepted=ACCEPTED)


def complaint(given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("+temperature=0.0", "+responses_create_params.temperature=0.0"),
        ("+max_tokens=100", "+responses_create_params.max_output_tokens=100"),
        ("+max_output_tokens=100", "+responses_create_params.max_output_tokens=100"),
        ("+top_p=0.9", "+responses_create_params.top_p=0.9"),
        ("+resume=true", "+resume_from_cache=true"),
        ("+concurrency=8", "+num_samples_in_parallel=8"),
        ("+policy_model_nam=x", "+policy_model_name=x"),
        ("+model=x", "+policy_model_name=x"),
        ("+agent=x", "+agent_name=x"),
        ("+repeats=4", "+num_repeats=4"),
        ("+input=a.jsonl", "+input_jsonl_fpath=a.jsonl"),
        ("--hlp", "--help"),
        ("+head_server.prot=3", "+head_server.port=3"),
        ("+response_create_params.temperature=1", "+responses_create_params.temperature=1"),
        ("+calcc.resources_servers.calculator.precision=2", "+calc.resources_servers.calculator.precision=2"),
        ("+calc.resource_servers.calculator.precision=2", "+calc.resources_servers.calculator.precision=2"),
        ("+calc.resources_servers.calculatr.precision=2", "+calc.resources_servers.calculator.precision=2"),
        ("+mine.depht=2", "+mine.depth=2"),
    ],
)
def test_unknown_argument_is_refused_with_the_name_that_is_meant(
    write: Write, argument: str, meant: str
) -> None:
    write("env.yaml", SERVER + "mine: {depth: 1}")
    message = complaint([argument])
    assert message.endswith(f"unknown; did you mean {meant}?"), message


def test_setting_of_a_python_caller_is_named_without_a_plus(write: Write) -> None:
    write("env.yaml", SERVER)
    assert complaint({"policy_model_nam": "x"}) == (
        "policy_model_nam: unknown; did you mean policy_model_name?"
    )


def test_setting_like_no_other_is_refused_with_what_to_do(write: Write) -> None:
    write("env.yaml", SERVER)
    assert complaint(["+flavour=sweet"]) == "flavour: unknown; see the list"


def test_all_unknown_settings_are_in_one_error(write: Write) -> None:
    message = complaint(["+resume=true", "+flavour.of=1", "+flavour.by=2"])
    assert message.startswith("3 settings are unknown:\n  resume: unknown; did you mean +resume_from_cache")


def test_value_of_a_secret_is_not_shown(write: Write) -> None:
    assert "sk-mine" not in complaint(["+polcy_api_key=sk-mine"])
    assert "+policy_api_key=****" in complaint(["+polcy_api_key=sk-mine"])


REFERENCES = {
    "a whole value": "x: ${word}",
    "inside a text": "x: http://${word}/v1",
    "in a default": "x: ${oc.select:word,none}",
    "nested": "x: ${oc.env:NG_NOT_SET,${word}}\nword: null",
    "in a list": "x: [1, {y: '${word}'}]",
    "by a copy": "x: ${copy:word}\nword: {}",
    "by a directive": "x: {_inherit_from: word}",
    "a directive's text": "x: ${inherit_from:word}",
}


@pytest.mark.parametrize("case", REFERENCES)
def test_key_that_a_file_refers_to_is_known(write: Write, case: str) -> None:
    write("env.yaml", REFERENCES[case])
    assert loaded({"word": {"y": 1}} if "copy" in case or "directive" in case else ["+word=1"])


def test_key_below_a_computed_reference_is_known(write: Write) -> None:
    write("env.yaml", "which: small\nmodel: ${models.${which}.url}")
    assert loaded(["+models.small.url=x"]).data["model"] == "x"
    assert "modles: unknown" not in complaint(["+models.small.url=x", "+flavour=1"])


def test_key_that_the_name_of_a_file_refers_to_is_known(write: Write) -> None:
    write("small.yaml", "x: 1")
    write("all.yaml", "config_paths: ['${size}.yaml']")
    assert loaded(["+config_paths=all.yaml", "+size=small"]).data["x"] == 1
    assert loaded(["+config_paths=['${size}.yaml']", "+size=small"]).data["x"] == 1


def test_only_the_part_that_is_referred_to_is_known(write: Write) -> None:
    write("env.yaml", "x: ${sampling.temperature}\nsampling: {temperature: 1}")
    assert loaded(["+sampling.temperature=2"])
    assert "did you mean +sampling.temperature=2?" in complaint(["+sampling.temprature=2"])


@pytest.mark.parametrize(
    "argument",
    [
        "+default_hots=3",
        "+nothing=3",
        "+nothing.of=3",
        "+mine.new=3",
        "+calc.resources_servers.calculator.precision=2",
        "+calc.resources_servers.calculator.undeclared=2",
        "+calc.resources_servers.calculator.options.top_k=2",
        "+calc.resources_servers.calculator={entrypoint: app.py, domain: math}",
    ],
)
def test_key_in_a_file_or_below_one_is_known(write: Write, argument: str) -> None:
    write("env.yaml", SERVER + "default_hots: 1\nnothing: null\nmine: {depth: 1}")
    assert loaded([argument])


def test_complete_server_is_known(write: Write) -> None:
    server = {"calc": {"resources_servers": {"calculator": {"entrypoint": "app.py", "domain": "math"}}}}
    assert loaded(server).servers
    assert loaded(["+c.resources_servers.d.entrypoint=app.py", "+c.resources_servers.d.domain=math"]).servers


@pytest.mark.parametrize(
    "key", ["policy_base_url", "hf_token", "wandb_project", "startup_timeout_s", "split"]
)
def test_settings_of_the_configuration_and_of_other_commands_are_known(write: Write, key: str) -> None:
    assert loaded([f"+{key}=1"]).data[key] in (1, "1")


def test_keys_of_a_script_are_never_unknown_unless_they_nearly_match(write: Write) -> None:
    assert load_config(overrides=parse_arguments(["+host=x", "+flavour=1", "+limt=3"]))
    with pytest.raises(ConfigError, match=r"did you mean \+default_host=x\?"):
        load_config(overrides=parse_arguments(["+defalt_host=x"]))


class Settings(BaseModel):
    precision: int = 3


class OpenSettings(Settings):
    model_config = ConfigDict(extra="allow")


def test_field_that_the_class_of_a_server_lacks_is_refused() -> None:
    block = "calc.resources_servers.calculator"
    undeclared = [f"{block}.precison", "other.x"]
    with pytest.raises(ConfigError) as caught:
        refuse_unknown_fields(Settings, block, undeclared, {undeclared[0]: "2"})
    assert str(caught.value) == (
        "calc.resources_servers.calculator.precison: unknown; "
        "did you mean +calc.resources_servers.calculator.precision=2?"
    )
    refuse_unknown_fields(OpenSettings, "calc.resources_servers.calculator", undeclared, {})
    refuse_unknown_fields(
        Settings, "calc.resources_servers.calculator", [f"{undeclared[0][:-8]}precision"], {}
    )


def test_list_of_shared_settings_is_complete() -> None:
    commands = [import_module(f"nemo_gym.cli.{name}").COMMAND for name in COMMANDS]
    fields = {name for one in commands if one.reads_files for name in one.options.model_fields}
    assert {*fields, *E2ERolloutCollectionConfig.model_fields} == COMMAND_SETTINGS
    assert set(GlobalAIOHTTPAsyncClientConfig.model_fields) <= GLOBAL_SETTINGS


def test_suggestions_are_only_settings_that_the_command_has() -> None:
    assert meant_settings("resume", ["config_paths", "startup_timeout_s"]) == []
    assert meant_settings("temperature", ["config_paths"]) == []
    files = ["input_jsonl_fpath", "output_jsonl_fpath"]
    assert meant_settings("jsonl", [*files, "config_paths"]) == files
