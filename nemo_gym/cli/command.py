"""A command: the class of its settings, an example, and the function that runs it."""

import logging
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nemo_gym.cli.main import COMMANDS
from nemo_gym.cli.output import say
from nemo_gym.config import (
    GymConfig,
    component_roots,
    flag_fields,
    load_config,
    parse_arguments,
    string_fields,
    validate_fields,
)
from nemo_gym.config.known_settings import DECLARE, AcceptedSettings
from nemo_gym.config.unknown import refuse_unknown, undeclared_paths
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.environment_variables import forget_policy_api_key
from nemo_gym.errors import ConfigError
from nemo_gym.log_output import start_logging

_LONGEST_LINE = 110
_LAST = ("wandb_", "mlflow_")
"""Prefixes of fields listed last in the help: rarely needed."""
_NAMED = re.compile(r"~|-|\+{0,2}[\w.]+=")

Options = TypeVar("Options", bound=BaseModel)


class ConfigPaths(BaseNeMoGymCLIConfig):
    """The settings of every command that reads a configuration."""

    config_paths: list[str] = Field(default_factory=list)
    """YAML files of the configuration: `[a.yaml,b.yaml]`. Later files override earlier ones. Relative paths
    are searched for in NEMO_GYM_EXTRA_ROOTS, the working directory and the folder of installed components."""


@dataclass(frozen=True)
class Command(Generic[Options]):
    """One command."""

    name: str
    options: type[Options]
    run: Callable[[GymConfig, Options], int]
    """Returns the exit code."""
    example: str
    reads_files: bool = True
    """Whether env.yaml and config_paths are read."""
    other_key: str = "+policy_model_name=my-model"
    """An example of a key that is not a field, shown in the help if `reads_files`."""
    log_level: int = logging.WARNING
    positional: tuple[str, ...] = ()
    """Fields whose names may be omitted, in this order: `ng compare a.jsonl b.jsonl`."""

    def main(self, arguments: list[str]) -> int:
        if not {"--help", "-h"}.isdisjoint(arguments):
            say(self.help())
            return 0
        logs = start_logging(self.log_level)
        arguments = self.named(arguments)
        overrides = parse_arguments(arguments, string_fields(self.options), flag_fields(self.options))
        if self.reads_files:
            config = load_config(overrides=overrides, accepted=self.accepted)
            forget_policy_api_key()
            logs.hide(config.secrets)
        else:
            refuse_unknown(undeclared_paths(overrides, {}), overrides, {}, self.accepted)
            config = GymConfig(
                overrides.values, (), overrides.texts, config_paths=(), roots=component_roots()
            )
        return self.run(config, validate_fields(self.options, config.data, config.texts))

    @property
    def accepted(self) -> AcceptedSettings:
        """Without files, there is no server that could read another key."""
        fields = tuple(self.options.model_fields)
        if self.reads_files:
            return AcceptedSettings(fields, otherwise=f"ng_{self.name} --help lists the settings; {DECLARE}")
        known = ", ".join(f"+{name}=" for name in fields)
        return AcceptedSettings(fields, also=(), otherwise=f"ng_{self.name} has these settings: {known}")

    def named(self, arguments: list[str]) -> list[str]:
        """The arguments, with names added to positional ones and `--json` replaced by its field."""
        names, named, previous = iter(self.positional), [], ""
        for argument in arguments:
            if argument == "--json" and "json_output" in self.options.model_fields:
                named.append("--json_output=true")
            elif not self.positional or _NAMED.match(argument) or self._is_value(argument, previous):
                named.append(argument)
            elif (name := next(names, None)) is not None:
                named.append(f"{name}={argument}")
            else:
                raise ConfigError(f"too many arguments: {argument!r}; usage: {self._positional_usage()}")
            previous = argument
        return named

    def _is_value(self, argument: str, previous: str) -> bool:
        """Whether an argument is the value of the option before it."""
        if not previous.startswith("--") or "=" in previous or previous == "--json":
            return False
        is_flag = previous[2:].replace("-", "_") in flag_fields(self.options)
        return not is_flag or argument.lower() in ("true", "false")

    def _positional_usage(self) -> str:
        return " ".join([f"ng {self.name}", *(f"<{name}>" for name in self.positional)])

    def help(self) -> str:
        lines = [f"ng_{self.name}: {COMMANDS[self.name]}.", "", f"example: {_wrapped(self.example)}", ""]
        fields = self.options.model_fields
        for name in sorted(fields, key=lambda name: (not fields[name].is_required(), name.startswith(_LAST))):
            lines += _field_lines(name, fields[name])
        lines += [
            "",
            "Each setting may be written +key=value, ++key=value, key=value, --key=value or --key value.",
        ]
        if self.positional:
            lines.append(f"Names may be omitted: {self._positional_usage()}")
        if "json_output" in fields:
            lines.append("--json is short for +json_output=true.")
        if self.reads_files:
            lines.append(f"Any other key of the configuration can be set the same way: {self.other_key}")
        return "\n".join(lines)


def _wrapped(example: str) -> str:
    """A long example with one argument per line, ready to paste into a shell."""
    return example if len(example) <= _LONGEST_LINE else example.replace(" ", " \\\n    ")


def _field_lines(name: str, field: FieldInfo) -> list[str]:
    default = field.get_default(call_default_factory=True)
    shown = "required" if default is PydanticUndefined else f"default {_text(default)}"
    description = (field.description or "").splitlines()
    head = f"  +{name}=  {_type_text(field.annotation)}, {shown}"
    return [head, *(f"      {line.strip()}" for line in description)]


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_text(annotation: Any) -> str:
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(member) for member in members)
    if origin is Literal:
        return " | ".join(_text(member) for member in members)
    if origin is Annotated:
        return _type_text(members[0])
    if origin is list:
        return f"list of {_type_text(members[0])}"
    if annotation is type(None):
        return "null"
    return getattr(annotation, "__name__", str(annotation))
