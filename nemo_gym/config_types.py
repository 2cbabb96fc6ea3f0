"""Configuration classes that environments and commands derive from, and the configuration errors."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.errors import (
    AlmostServerError,
    ComponentError,
    ConfigError,
    ConfigMissingValuesError,
    ConfigPathNotFoundError,
    ConfigSyntaxError,
    InheritPathNotFoundError,
    ServerRefNotFoundError,
)
from nemo_gym.setting_names import meant_settings
from nemo_gym.types import SERVER_KINDS

__all__ = [
    "AgentServerRef",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "AlmostServerError",
    "BaseNeMoGymCLIConfig",
    "BaseRunServerConfig",
    "BaseRunServerInstanceConfig",
    "BaseServerConfig",
    "BenchmarkDatasetConfig",
    "ComponentError",
    "ConfigError",
    "ConfigMissingValuesError",
    "ConfigPathNotFoundError",
    "ConfigSyntaxError",
    "DatasetConfig",
    "Domain",
    "InheritPathNotFoundError",
    "ModelServerRef",
    "ResourcesServerRef",
    "ServerRefNotFoundError",
    "is_server_ref",
]


class BaseNeMoGymCLIConfig(BaseModel):
    """Base class of a command's settings. Validated from the whole configuration; other keys are ignored."""

    model_config = ConfigDict(use_attribute_docstrings=True, hide_input_in_errors=True)

    if not TYPE_CHECKING:  # type checkers know the fields, and refuse other names themselves

        def __new__(cls, **given: Any) -> Self:
            """Refuse unknown keyword arguments. `model_validate` passes none here, so a whole configuration
            may have other keys."""
            refuse_unknown_arguments(cls, given)
            return super().__new__(cls)

    @model_validator(mode="before")
    @classmethod
    def _plain_data(cls, data: Any) -> Any:
        """Validate a DictConfig like a dict."""
        if isinstance(data, BaseModel | dict):
            return data
        from omegaconf import DictConfig, OmegaConf

        return OmegaConf.to_container(data, resolve=True) if isinstance(data, DictConfig) else data


def refuse_unknown_arguments(model_class: type[BaseModel], given: Collection[str]) -> None:
    """Raise one error for all names that are not fields of the class."""
    unknown = [name for name in given if name not in names_of_fields(model_class)]
    if unknown and model_class.model_config.get("extra") != "allow":
        fields = list(model_class.model_fields)
        hints = ((name, meant_settings(name, fields)) for name in unknown)
        shown = (f"{name} (did you mean {' or '.join(meant)}?)" if meant else name for name, meant in hints)
        raise ConfigError(
            f"{model_class.__name__} has no field {', '.join(shown)}; its fields: {', '.join(fields)}"
        )


def names_of_fields(model_class: type[BaseModel]) -> set[str]:
    """The names of its fields, and their aliases."""
    aliases = ((field.alias, field.validation_alias) for field in model_class.model_fields.values())
    return {*model_class.model_fields, *(name for pair in aliases for name in pair if isinstance(name, str))}


class ResourcesServerRef(BaseModel):
    type: Literal["resources_servers"] = "resources_servers"
    name: str


class AgentServerRef(BaseModel):
    type: Literal["responses_api_agents"] = "responses_api_agents"
    name: str


class ModelServerRef(BaseModel):
    type: Literal["responses_api_models"] = "responses_api_models"
    name: str


def is_server_ref(value: object) -> bool:
    """Whether a configuration value names another server: `{type: <kind>, name: <instance>}`."""
    return (
        isinstance(value, Mapping)
        and set(value) == {"type", "name"}
        and value["type"] in SERVER_KINDS
        and isinstance(value["name"], str)
    )


class Domain(StrEnum):
    """The capability that an environment trains or tests."""

    MATH = "math"
    CODING = "coding"
    AGENT = "agent"
    KNOWLEDGE = "knowledge"
    INSTRUCTION_FOLLOWING = "instruction_following"
    LONG_CONTEXT = "long_context"
    SAFETY = "safety"
    GAMES = "games"
    TRANSLATION = "translation"
    E2E = "e2e"
    RLHF = "rlhf"
    OTHER = "other"


class DatasetConfig(BaseModel):
    """One dataset of an agent."""

    model_config = ConfigDict(extra="allow")

    name: str
    type: Literal["train", "validation", "example", "benchmark"]
    jsonl_fpath: str
    num_repeats: int = Field(default=1, ge=1)
    license: str | None = None

    @model_validator(mode="after")
    def _licensed_where_it_trains(self) -> "DatasetConfig":
        if self.type in ("train", "validation") and not self.license:
            raise ValueError(f"dataset {self.name!r} of type {self.type!r} needs a `license`")
        return self


class BenchmarkDatasetConfig(DatasetConfig):
    type: Literal["benchmark"] = "benchmark"
    prepare_script: str | None = None
    prompt_config: str | None = None


class BaseServerConfig(BaseModel):
    """The address of a server. A subclass may hold secrets: no error message contains its input."""

    model_config = ConfigDict(hide_input_in_errors=True)

    host: str
    port: int


class BaseRunServerConfig(BaseServerConfig):
    """The fields of every server block in a configuration file."""

    entrypoint: str
    domain: Domain | str | None = None
    num_workers: int | None = Field(default=None, ge=1)
    datasets: list[DatasetConfig] | None = None


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """A server block with the name of its instance."""

    name: str


class AggregateMetricsRequest(BaseModel):
    """Body of POST /aggregate_metrics: rollouts as the verifier returned them."""

    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    """Response of POST /aggregate_metrics."""

    agent_metrics: dict[str, Any] = Field(default_factory=dict)
    key_metrics: dict[str, Any] = Field(default_factory=dict)
    group_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
