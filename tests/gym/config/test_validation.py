import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel, Field

from nemo_gym.config import flag_fields, parse_arguments, string_fields, validate_fields
from nemo_gym.errors import ConfigError


class Command(BaseModel):
    output_jsonl_fpath: str
    agent_name: str | None = None
    limit: int | None = Field(default=None, ge=1)
    num_repeats: int = Field(default=1, ge=1)
    resume_from_cache: bool = False
    judge_api_key: str | None = None


def validated(*argv: str) -> Command:
    overrides = parse_arguments(argv)
    return validate_fields(Command, overrides.values, overrides.texts)


def problem(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        validated(*argv)
    return str(caught.value)


def test_kinds_of_fields_are_known_from_the_class() -> None:
    assert string_fields(Command) == {"output_jsonl_fpath", "agent_name", "judge_api_key"}
    assert flag_fields(Command) == {"resume_from_cache"}


def test_string_fields_keep_the_typed_text() -> None:
    command = validated("+output_jsonl_fpath=1234_5678", "+agent_name=1e5", "+limit=3")
    assert (command.output_jsonl_fpath, command.agent_name, command.limit) == ("1234_5678", "1e5", 3)
    assert validated("+output_jsonl_fpath=x", "+agent_name=null").agent_name is None


def test_fields_of_a_block_are_recognized_by_their_prefix() -> None:
    command = validate_fields(
        Command, {"output_jsonl_fpath": 7}, {"a.b.output_jsonl_fpath": "007"}, prefix="a.b"
    )
    assert command.output_jsonl_fpath == "007"
    with pytest.raises(ConfigError, match=r"^a\.b\.limit: 0 is not allowed"):
        validate_fields(Command, {"output_jsonl_fpath": "x", "limit": 0}, prefix="a.b")


def test_dictconfig_and_unknown_keys_are_accepted() -> None:
    data = OmegaConf.create({"output_jsonl_fpath": "x", "policy_model": {"responses_api_models": {}}})
    assert validate_fields(Command, data).output_jsonl_fpath == "x"


def test_missing_required_field_is_named_with_an_example() -> None:
    expected = "output_jsonl_fpath: required but not set; set it with +output_jsonl_fpath=<value>"
    assert problem("+limit=3") == expected


def test_error_for_a_bad_value_lists_the_allowed_ones() -> None:
    message = problem("+output_jsonl_fpath=x", "+limit=0")
    assert message == "limit: 0 is not allowed: should be greater than or equal to 1 (int or null)"


def test_all_problems_are_in_one_error() -> None:
    message = problem("+limit=-1", "+num_repeats=many")
    assert message.startswith("3 settings are invalid:\n")
    assert "\n  output_jsonl_fpath: required" in message
    assert "\n  limit: -1 is not allowed" in message
    assert "\n  num_repeats: many is not allowed: should be a valid integer" in message


def test_secrets_are_hidden_in_errors() -> None:
    message = problem("+output_jsonl_fpath=x", "+judge_api_key.deep=sk-very-secret")
    assert "judge_api_key: **** is not allowed" in message
    assert "sk-very" not in message
    with pytest.raises(ConfigError) as caught:
        validate_fields(Command, {"output_jsonl_fpath": "x", "limit": "http://me:sesame@host/"})
    assert "sesame" not in str(caught.value)
