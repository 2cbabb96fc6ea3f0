"""Where the key of the policy comes from. No message about a setting shows a secret."""

import os
from pathlib import Path

import pytest
import yaml

from nemo_gym.config import load_config, parse_arguments
from tests.gym.cli.conftest import Ng
from tests.support.components import write_files

SECRET = "sk-SEKRET-9988"
MODEL = "policy_model.responses_api_models.openai_model"
CALCULATOR = (
    "+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]"
)
POLICY = ("+policy_base_url=http://127.0.0.1:1/v1", "+policy_model_name=m")
COLLECT = (
    "+agent_name=calculator_simple_agent",
    "+input_jsonl_fpath=x.jsonl",
    "+output_jsonl_fpath=y.jsonl",
    "+hosting=embedded",
)


def test_policy_api_key_comes_from_the_command_line_before_env_yaml_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(*arguments: str) -> object:
        return load_config(overrides=parse_arguments(arguments)).data["policy_api_key"]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLICY_API_KEY", "from-the-environment")
    assert key() == "from-the-environment"
    write_files(tmp_path, {"env.yaml": "policy_api_key: from-env-yaml"})
    assert key() == "from-env-yaml"
    assert key("+policy_api_key=from-the-command-line") == "from-the-command-line"


def test_command_removes_the_key_from_its_environment(ng: Ng, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_API_KEY", SECRET)
    done = ng("dump_config")
    assert yaml.safe_load(done.out)["policy_api_key"] == "****"
    assert "POLICY_API_KEY" not in os.environ


@pytest.mark.parametrize(
    "argument",
    [
        f"+policy_api_key=[{SECRET},",
        f"+policy_api_key={{a: {SECRET}}}",
        f"+{MODEL}.openai_api_key=[{SECRET}]",
        f"+{MODEL}.default_headers={SECRET}",
        f"+{MODEL}.extra_headers={{A: {SECRET}}}",
        f"+polcy_api_key={SECRET}",
        f"policy api_key={SECRET}",
        f"+policy_base_url=[http://me:{SECRET}@host]",
        f"+wandb_api_key=[{SECRET}]",
        f"+responses_create_params={{metadata: {{user_key: {SECRET}}}, x: }}",
        f"+responses_create_params.metadata.user_key={SECRET}",
    ],
)
def test_no_message_about_a_setting_shows_a_secret(ng: Ng, argument: str) -> None:
    done = ng("collect_rollouts", CALCULATOR, *POLICY, *COLLECT, argument)
    assert done.code == 2
    assert SECRET not in done.out + done.err


@pytest.mark.parametrize(
    "value", ['"SECRET', "@SECRET", "*SECRET", "${SECRET", "!SECRET x", "!SECRET", "[SECRET", "a: SECRET"]
)
def test_no_message_about_env_yaml_shows_a_secret(ng: Ng, tmp_path: Path, value: str) -> None:
    write_files(tmp_path, {"env.yaml": f"policy_api_key: {value.replace('SECRET', SECRET)}\nb: 1"})
    done = ng("validate", CALCULATOR, *POLICY)
    assert done.code == 2
    assert SECRET not in done.out + done.err
