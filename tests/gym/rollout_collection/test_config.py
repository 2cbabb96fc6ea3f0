"""The configuration classes: accepted values, rejected values, messages."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel, ValidationError

from nemo_gym.config import validate_fields
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError
from nemo_gym.reward_profile import RewardProfileConfig
from nemo_gym.rollout_collection import (
    E2ERolloutCollectionConfig,
    RolloutAggregationConfig,
    RolloutAggregationHelper,
    RolloutCollectionConfig,
    RolloutCollectionHelper,
    SharedRolloutCollectionConfig,
)
from tests.gym.cli.conftest import Ng, ng
from tests.support.scripted_agent import MODEL, Playground, row

__all__ = ["ng"]  # the fixture

CLASSES = [
    SharedRolloutCollectionConfig,
    RolloutCollectionConfig,
    E2ERolloutCollectionConfig,
    RolloutAggregationConfig,
]
PATHS = {"input_jsonl_fpath": "in.jsonl", "output_jsonl_fpath": "results/out.jsonl"}


def test_defaults_are_those_of_the_contract() -> None:
    config = RolloutCollectionConfig(**PATHS)
    published: dict[str, Any] = {
        "num_samples_in_parallel": None,
        "responses_create_params": {},
        "upload_rollouts_to_wandb": True,
        "disable_aggregation": False,
        "agent_name": None,
        "limit": None,
        "num_repeats": 1,
        "num_repeats_add_seed": False,
        "resume_from_cache": False,
        "prompt_config": None,
    }
    assert published | PATHS == {name: getattr(config, name) for name in published | PATHS}
    assert config.parallel == 256


def test_defaults_of_the_other_classes() -> None:
    whole_run = E2ERolloutCollectionConfig(output_jsonl_fpath="o.jsonl", split="train")
    assert whole_run.reuse_existing_data_preparation is False
    assert RolloutAggregationConfig(input_glob="*.jsonl", output_jsonl_fpath="o.jsonl").merge_shards is True


def test_materialized_inputs_are_written_next_to_the_output() -> None:
    config = RolloutCollectionConfig(**PATHS)
    assert config.materialized_jsonl_fpath == Path("results/out_materialized_inputs.jsonl")


@pytest.mark.parametrize("cls", CLASSES)
def test_every_field_is_described(cls: type[BaseModel]) -> None:
    assert issubclass(cls, BaseNeMoGymCLIConfig)
    assert [name for name, field in cls.model_fields.items() if not field.description] == []


def test_configurations_share_the_fields_of_the_shared_one() -> None:
    assert issubclass(RolloutCollectionConfig, SharedRolloutCollectionConfig)
    assert issubclass(E2ERolloutCollectionConfig, SharedRolloutCollectionConfig)


@pytest.mark.parametrize("helper", [RolloutCollectionHelper, RolloutAggregationHelper])
def test_helpers_are_models_without_fields(helper: type[BaseModel]) -> None:
    assert issubclass(helper, BaseModel)
    assert helper.model_fields == {}
    assert helper().model_dump() == {}


WHOLE: dict[str, Any] = {
    **PATHS,
    "limit": 3,
    "num_repeats": {"a": 2, "_default": 1},
    "responses_create_params": {"temperature": 0.5, "reasoning": {"effort": "${level}"}},
    "level": "low",
    "config_paths": ["a.yaml"],
    "policy_model": {"responses_api_models": {"openai_model": {"entrypoint": "app.py"}}},
    "limits": 7,
}


@pytest.mark.parametrize("as_config", [True, False])
def test_complete_configuration_validates_and_other_keys_are_ignored(as_config: bool) -> None:
    values = OmegaConf.create(WHOLE)
    config = RolloutCollectionConfig.model_validate(
        values if as_config else OmegaConf.to_container(values, resolve=True)
    )
    assert (config.limit, config.num_repeats) == (3, {"a": 2, "_default": 1})
    params = config.responses_create_params
    assert params == {"temperature": 0.5, "reasoning": {"effort": "low"}}
    assert type(params) is dict and type(params["reasoning"]) is dict


def test_null_means_the_default() -> None:
    config = RolloutCollectionConfig(**PATHS, limit=None, num_repeats=None, num_samples_in_parallel=None)
    assert (config.limit, config.num_repeats, config.parallel) == (None, None, 256)


BAD: list[tuple[str, Any, list[str]]] = [
    ("limit", 0, ["0", "greater than or equal to 1"]),
    ("limit", -3, ["-3", "greater than or equal to 1"]),
    ("limit", True, ["True", "number"]),
    ("limit", 1.5, ["1.5", "integer"]),
    ("limit", "many", ["many", "integer"]),
    ("num_repeats", 0, ["0", "whole number of at least 1"]),
    ("num_repeats", True, ["True", "whole number of at least 1"]),
    ("num_repeats", 2.5, ["2.5", "whole number of at least 1"]),
    ("num_repeats", float("nan"), ["nan", "whole number of at least 1"]),
    ("num_repeats", {"a": 0}, ["0 for 'a'", "whole number of at least 1"]),
    ("num_repeats", {"a": 1, "b": None}, ["None for 'b'", "whole number of at least 1"]),
    ("num_repeats", {"a": False}, ["False for 'a'", "whole number of at least 1"]),
    ("num_samples_in_parallel", 0, ["0", "greater than or equal to 1"]),
    ("num_samples_in_parallel", True, ["True", "number"]),
    ("max_failure_rate", -0.1, ["-0.1", "greater than or equal to 0"]),
    ("max_failure_rate", True, ["True", "number"]),
    ("max_attempts", 0, ["0", "greater than or equal to 1"]),
    ("num_workers", 0, ["0", "greater than or equal to 1"]),
    ("call_timeout_s", 0, ["0", "greater than 0"]),
    ("call_timeout_s", True, ["True", "number"]),
    ("rollout_timeout_s", -1, ["-1", "greater than 0"]),
    ("retry_backoff_s", -1, ["-1", "greater than or equal to 0"]),
    ("responses_create_params", 3, ["3", "dict"]),
    ("hosting", "here", ["here", "'auto', 'embedded' or 'served'"]),
    ("resume_from_cache", "maybe", ["maybe", "boolean"]),
]


@pytest.mark.parametrize(("field", "value", "expected"), BAD)
def test_error_for_a_bad_value_names_field_value_and_allowed_values(
    field: str, value: Any, expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_fields(RolloutCollectionConfig, {**PATHS, field: value})
    message = str(refused.value)
    assert message.startswith(f"{field}: ") and "\n" not in message
    assert all(text in message for text in expected), message
    with pytest.raises(ValidationError):
        RolloutCollectionConfig.model_validate({**PATHS, field: value})


@pytest.mark.parametrize("split", ["test", None, 1])
def test_split_is_one_of_three(split: Any) -> None:
    with pytest.raises(ConfigError, match="'train', 'validation' or 'benchmark'"):
        validate_fields(E2ERolloutCollectionConfig, {"output_jsonl_fpath": "o.jsonl", "split": split})


@pytest.fixture
def playground(tmp_path: Path, ng: Ng) -> Playground:
    made = Playground(tmp_path)
    made.write_input(row())
    return made


@pytest.fixture
def arguments(playground: Playground) -> list[str]:
    return [
        f"+config_paths=[{','.join(playground.config_paths)}]",
        *(f"+{key}={value}" for key, value in MODEL.items()),
        *(
            "+agent_name=scripted",
            "+input_jsonl_fpath=input.jsonl",
            "+output_jsonl_fpath=out/rollouts.jsonl",
        ),
        *("+hosting=embedded", "+retry_backoff_s=0"),
    ]


COMMAND_LINES: dict[str, list[str]] = {
    "+limit=0": ["limit", "0", "greater than or equal to 1"],
    "+limit=true": ["limit", "True", "number"],
    "--limit=-1": ["limit", "-1", "greater than or equal to 1"],
    "+num_repeats=0": ["num_repeats", "0", "whole number of at least 1"],
    "+num_repeats={scripted: 0}": ["num_repeats", "0 for 'scripted'"],
    "+num_repeats.scripted=0": ["num_repeats", "0 for 'scripted'"],
    "+num_samples_in_parallel=0": ["num_samples_in_parallel", "0", "greater than or equal to 1"],
    "+max_failure_rate=-1": ["max_failure_rate", "-1", "greater than or equal to 0"],
    "+num_repeat=3": ["num_repeat: unknown", "did you mean +num_repeats=3?"],
    "+limt=3": ["limt: unknown", "did you mean +limit=3?"],
    "+resume_from_cach=true": ["did you mean +resume_from_cache=true?"],
    "+num_sample_in_parallel=3": ["did you mean +num_samples_in_parallel=3?"],
    "+temperature=0.0": ["did you mean +responses_create_params.temperature=0.0?"],
    "+max_tokens=100": ["did you mean +responses_create_params.max_output_tokens=100?"],
    "+resume=true": ["did you mean +resume_from_cache=true?"],
    "+concurrency=8": ["did you mean +num_samples_in_parallel=8?"],
    "+policy_model_nam=x": ["did you mean +policy_model_name=x?"],
    "--hlp": ["did you mean --help?"],
    "+flavour=sweet": ["flavour: unknown", "ng_collect_rollouts --help"],
    "+scripted.responses_api_agents.scripted.flavour=3": ["flavour: unknown", "the settings of this server"],
    "+response_create_params.temperature=0.5": ["did you mean +responses_create_params"],
}


@pytest.mark.parametrize("argument", COMMAND_LINES)
def test_bad_argument_ends_with_exit_code_2_and_nothing_is_written_or_started(
    ng: Ng, playground: Playground, arguments: list[str], argument: str
) -> None:
    ng("collect_rollouts", *arguments, argument).assert_complains(*COMMAND_LINES[argument])
    assert not playground.output.parent.exists()
    assert playground.played() == []


@pytest.mark.parametrize("cls", [*CLASSES, RewardProfileConfig])
def test_unknown_argument_of_a_configuration_class_is_refused(cls: type[BaseModel]) -> None:
    with pytest.raises(ConfigError, match=f"{cls.__name__} has no field flavour; its fields: "):
        cls(flavour="sweet")


def test_unknown_argument_is_refused_with_the_field_that_is_meant() -> None:
    with pytest.raises(ConfigError, match=r"has no field agent_nam \(did you mean agent_name\?\)"):
        RolloutCollectionConfig(**{**PATHS, "agent_nam": "x"})
    with pytest.raises(ConfigError, match=r"temperature \(did you mean responses_create_params.temperature"):
        RolloutCollectionConfig(**{**PATHS, "temperature": 0})


def test_configuration_can_be_copied_and_pickled() -> None:
    config = RolloutCollectionConfig(**PATHS, limit=3)
    assert config == pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config.model_copy()


def test_arguments_that_are_missing_are_all_named(ng: Ng, playground: Playground) -> None:
    done = ng("collect_rollouts", "+agent_name=scripted")
    done.assert_complains("input_jsonl_fpath: required", "+input_jsonl_fpath=<value>")
    assert not playground.output.parent.exists()


def test_help_shows_every_field_with_type_and_default(ng: Ng) -> None:
    done = ng("collect_rollouts", "--help")
    assert (done.code, done.err) == (0, "")
    assert "+limit=  int or null, default null" in done.out
    assert "+num_repeats=  int or dict or null, default 1" in done.out
    assert "+input_jsonl_fpath=  str, required" in done.out
    assert "+output_jsonl_fpath=  str or null, default null" in done.out
    assert "+call_timeout_s=  float, default 900.0" in done.out
    for name, field in RolloutCollectionConfig.model_fields.items():
        assert f"  +{name}=  " in done.out
        if name == "output_jsonl_fpath":  # the command has a default
            continue
        assert field.description is not None
        assert field.description.splitlines()[0] in done.out


@pytest.mark.parametrize(
    "more",
    [["+limit=1"], ["--limit", "1"], ["++limit=1"], ["limit=1"], ["+limit=null", "+num_repeats=null"]],
)
def test_valid_arguments_are_accepted_in_every_syntax(
    ng: Ng, playground: Playground, arguments: list[str], more: list[str]
) -> None:
    done = ng("collect_rollouts", *arguments, *more)
    assert done.code == 0, done.err
    assert playground.played() == ["0:0"]


def test_output_is_named_after_the_input_and_the_time_if_none_is_given(
    ng: Ng, playground: Playground, arguments: list[str]
) -> None:
    without = [one for one in arguments if not one.startswith("+output")]
    done = ng("collect_rollouts", *without)
    assert done.code == 0, done.err
    [output] = Path("results").glob("*Z.jsonl")
    assert re.fullmatch(r"input_\d{8}T\d{6}Z\.jsonl", output.name)
    assert f"Output: {output} (+output_jsonl_fpath= was not given)\n" in done.err
    assert f"Rollouts: {output}\n" in done.out
    resumed = ng("collect_rollouts", *without, "+resume_from_cache=true")
    resumed.assert_complains("resume_from_cache needs", f"+output_jsonl_fpath=<path>, such as {output}")
    assert (
        ng("collect_rollouts", *without, f"+output_jsonl_fpath={output}", "+resume_from_cache=true").code == 0
    )


def test_only_agent_of_the_configuration_is_used_if_none_is_named(
    ng: Ng, playground: Playground, arguments: list[str]
) -> None:
    without = [one for one in arguments if not one.startswith("+agent_name")]
    done = ng("collect_rollouts", *without)
    assert done.code == 0, done.err
    assert "agent scripted" in done.err
    assert playground.played() == ["0:0"]
    assert ng("collect_rollouts", *without, "+dry_run=true").code == 0
    assert ng("collect_rollouts", *arguments, "+resume_from_cache=true").code == 0
    assert playground.played() == []


@pytest.mark.parametrize("is_dry", ["true", "false"])
def test_message_about_rows_without_an_agent_lists_the_agents(ng: Ng, tmp_path: Path, is_dry: str) -> None:
    playground = Playground(tmp_path, agents=["first", "second"])
    playground.write_input(row())
    done = ng(
        "collect_rollouts",
        f"+config_paths=[{','.join(playground.config_paths)}]",
        *(f"+{key}={value}" for key, value in MODEL.items()),
        *("+input_jsonl_fpath=input.jsonl", "+output_jsonl_fpath=out.jsonl", "+hosting=embedded"),
        f"+dry_run={is_dry}",
    )
    assert done.code == 2 and done.out == ""
    assert "rows 0 have no agent; pass +agent_name=<name> (first, second), or add" in done.err
