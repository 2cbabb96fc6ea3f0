"""The published configuration parser, which returns a DictConfig."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict

from nemo_gym.config.hints import did_you_mean
from nemo_gym.config.instances import block_of, instance_names
from nemo_gym.config.load import ENV_FILE, Sources, environment_defaults, load_sources
from nemo_gym.config.merge import deep_merge
from nemo_gym.config.overrides import Overrides, overrides_from, parse_arguments
from nemo_gym.config.ports import fill_ports
from nemo_gym.config.roots import component_roots
from nemo_gym.errors import ConfigPathNotFoundError, ServerRefNotFoundError

if TYPE_CHECKING:
    from omegaconf import DictConfig


class GlobalConfigDictParserConfig(BaseModel, use_attribute_docstrings=True):
    """The sources that a parser reads."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    dotenv_path: Path | None = None
    """File to read instead of env.yaml in the working directory."""
    initial_global_config_dict: Any = None
    """A mapping or DictConfig that overrides the files and env.yaml; the command line overrides it."""
    skip_load_from_cli: bool = False
    """Do not read sys.argv."""
    skip_load_from_dotenv: bool = False
    """Do not read env.yaml."""


class GlobalConfigDictParser:
    """Reads the configuration of this process."""

    def parse(self, parse_config: GlobalConfigDictParserConfig | None = None) -> "DictConfig":
        """The resolved configuration, read-only, with a host and a port for every server."""
        config = parse_config or GlobalConfigDictParserConfig()
        folder = Path.cwd()
        overrides, roots = self._overrides(config), component_roots(folder)
        sources = Sources((), overrides, _env_path(config, folder), roots, environment_defaults())
        return fill_ports(load_sources(sources)).values

    def _overrides(self, config: GlobalConfigDictParserConfig) -> Overrides:
        initial = overrides_from(config.initial_global_config_dict)
        arguments = Overrides() if config.skip_load_from_cli else parse_arguments(sys.argv[1:])
        values = deep_merge(initial.values, arguments.values)
        return Overrides(values, arguments.deletions, arguments.texts)


def get_first_server_config_dict(
    global_config_dict: "DictConfig | Mapping[str, Any]", top_level_path: str
) -> "DictConfig":
    """The implementation's block of the instance with this name."""
    block = block_of(global_config_dict, top_level_path)
    if block is None:
        hint = did_you_mean(top_level_path, instance_names(global_config_dict))
        raise ServerRefNotFoundError(f"no server {top_level_path!r} in the configuration; {hint}")
    return cast("DictConfig", block)


def _env_path(config: GlobalConfigDictParserConfig, folder: Path) -> Path | None:
    if config.skip_load_from_dotenv:
        return None
    if config.dotenv_path is None:
        return folder / ENV_FILE
    if not config.dotenv_path.is_file():
        raise ConfigPathNotFoundError(f"dotenv_path {str(config.dotenv_path)!r}: no such file; create it")
    return config.dotenv_path
