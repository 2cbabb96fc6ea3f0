"""Reads a configuration: files, env.yaml and overrides, from lowest to highest, become one GymConfig."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_gym.config.blocks import almost_server_message, find_servers
from nemo_gym.config.directives import apply_directives, delete_path
from nemo_gym.config.files import FileSet, path_list, without_paths
from nemo_gym.config.global_keys import GymSettings
from nemo_gym.config.gym_config import GymConfig
from nemo_gym.config.instances import ServerInstance, instance_at
from nemo_gym.config.known_settings import FOR_SCRIPTS, AcceptedSettings
from nemo_gym.config.merge import deep_merge
from nemo_gym.config.overrides import Overrides
from nemo_gym.config.plain_data import plain_data
from nemo_gym.config.references import check_references
from nemo_gym.config.resolve import fill_in, resolve
from nemo_gym.config.roots import component_roots
from nemo_gym.config.unknown import refuse_unknown, undeclared_paths
from nemo_gym.config.validation import validate_fields
from nemo_gym.config.yaml_file import load_yaml_file
from nemo_gym.environment_variables import policy_api_key
from nemo_gym.errors import AlmostServerError
from nemo_gym.types import CONFIG_PATHS_KEY_NAME, HEAD_SERVER_KEY_NAME, POLICY_API_KEY_KEY_NAME

ENV_FILE = "env.yaml"
COMMAND_LINE = "the command line"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sources:
    """All sources of a configuration."""

    config_paths: Sequence[str]
    overrides: Overrides
    env_path: Path | None
    """env.yaml, which need not exist; None if it is not to be read."""
    roots: tuple[Path, ...]
    defaults: Mapping[str, Any]
    accepted: AcceptedSettings = FOR_SCRIPTS

    def first_paths(self, env: Mapping[str, Any]) -> tuple[str, list[str]]:
        """The name and the config paths of the first source that has any."""
        named = (
            (COMMAND_LINE, self.overrides.values.get(CONFIG_PATHS_KEY_NAME)),
            (str(self.env_path), env.get(CONFIG_PATHS_KEY_NAME)),
            ("the defaults", self.defaults.get(CONFIG_PATHS_KEY_NAME)),
        )
        found = [(source, path_list(value, source)) for source, value in named]
        given = [*self.config_paths, *found[0][1]]
        return next((pair for pair in ((COMMAND_LINE, given), *found[1:]) if pair[1]), (COMMAND_LINE, []))


class _Layers:
    """Merged values, with the sources of each top-level key."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = dict(defaults)
        self.origins: dict[str, list[str]] = {}

    def add(self, values: Mapping[str, Any], source: str) -> None:
        self.values = deep_merge(self.values, values)
        for key in values:
            self.origins.setdefault(key, []).append(source)


def load_config(
    config_paths: str | Path | Sequence[str | Path] = (),
    overrides: Overrides | None = None,
    *,
    working_dir: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
    accepted: AcceptedSettings = FOR_SCRIPTS,
) -> GymConfig:
    """Merge, from lowest to highest: POLICY_API_KEY, `defaults`, the files of `config_paths`, env.yaml in the
    working directory, the overrides. `config_paths` in the overrides are added; without any, env.yaml's are
    used. Overrides that are neither `accepted` nor declared in a file are an error."""
    folder = working_dir or Path.cwd()
    paths = path_list(config_paths, COMMAND_LINE)
    given = {**environment_defaults(), **plain_data(defaults or {})}
    return load_sources(
        Sources(paths, overrides or Overrides(), folder / ENV_FILE, component_roots(folder), given, accepted)
    )


def environment_defaults() -> dict[str, Any]:
    """The settings that environment variables have values for."""
    key = policy_api_key()
    return {} if key is None else {POLICY_API_KEY_KEY_NAME: key}


def load_sources(sources: Sources) -> GymConfig:
    overrides = sources.overrides
    env = load_yaml_file(sources.env_path) if sources.env_path and sources.env_path.is_file() else {}
    above = deep_merge(env, overrides.values)
    files = FileSet(
        sources.roots,
        lambda text, values: fill_in(text, deep_merge(dict(values), above)),
    )
    source, named = sources.first_paths(env)
    texts = named
    named = [files.fill_in(path, {}) if "${" in path else path for path in named]
    files.add(named, source)
    layers = _Layers(without_paths(sources.defaults))
    for file in files.files.values():
        layers.add(file.values, str(file.path))
    layers.add(without_paths(env), str(sources.env_path))
    undeclared = undeclared_paths(overrides, layers.values, [*texts, *files.path_texts])
    refuse_unknown(undeclared, overrides, layers.values, sources.accepted)
    for key in overrides.deletions:
        layers.values = delete_path(layers.values, key)
    layers.add(without_paths(overrides.values), COMMAND_LINE)
    read = [sources.env_path.resolve()] if sources.env_path and sources.env_path.is_file() else []
    config = _finished(layers, named, overrides.texts, (*files.files, *read), sources.roots)
    return replace(config, undeclared=frozenset(map(".".join, undeclared)))


def _finished(
    layers: _Layers,
    named: list[str],
    texts: Mapping[str, str],
    paths: tuple[Path, ...],
    roots: tuple[Path, ...],
) -> GymConfig:
    """Apply directives, then interpolation, then validation, then check references."""
    data = resolve(apply_directives(layers.values, layers.origins), layers.origins)
    settings = validate_fields(GymSettings, data, texts)
    own = {**settings.model_dump(exclude_unset=True), HEAD_SERVER_KEY_NAME: settings.head().model_dump()}
    data = {**deep_merge(data, own), CONFIG_PATHS_KEY_NAME: named}
    servers = _servers(data, settings, layers.origins)
    check_references(servers, layers.origins)
    return GymConfig(data, servers, texts, paths, roots)


def _servers(
    data: Mapping[str, Any], settings: GymSettings, origins: Mapping[str, Sequence[str]]
) -> tuple[ServerInstance, ...]:
    found = find_servers(data, origins)
    if found.almost:
        message = almost_server_message(found.almost, origins)
        if settings.error_on_almost_servers:
            raise AlmostServerError(message)
        _log.warning("ignored: %s", message)
    return tuple(instance_at(data, path, settings.default_host) for path in found.paths)
