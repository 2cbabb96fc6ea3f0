"""The result of reading a configuration: frozen, resolved, validated."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.config.global_keys import GymSettings
from nemo_gym.config.hints import did_you_mean
from nemo_gym.config.instances import InstancePath, ServerInstance, instance_at
from nemo_gym.config.merge import deep_merge
from nemo_gym.config.plain_data import frozen_dictconfig, plain_data
from nemo_gym.config.secrets import mask_secrets, secret_values
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ServerRefNotFoundError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PAIRS_KEY = "__pairs__"


@dataclass(frozen=True)
class GymConfig:
    """One merged and resolved configuration and the servers in it."""

    data: dict[str, Any] = field(repr=False)  # secrets must not show in a log or a traceback
    """All values, as plain data. Must not be changed; see `with_layer`."""
    servers: tuple[ServerInstance, ...]
    """In the order of the files."""
    texts: Mapping[str, str] = field(repr=False)
    """The texts typed on the command line, by dotted key."""
    config_paths: tuple[Path, ...]
    """Every file that was read, lowest first."""
    roots: tuple[Path, ...]
    """The component roots, in which relative paths are searched for."""
    undeclared: frozenset[str] = frozenset()
    """The dotted keys that overrides set although no file declares them or refers to them."""

    @cached_property
    def values(self) -> "DictConfig":
        """All values, as a read-only DictConfig. Built when first used, because OmegaConf is slow to load."""
        return frozen_dictconfig(self.data)

    @cached_property
    def settings(self) -> GymSettings:
        return GymSettings.model_validate(self.data)

    @cached_property
    def head_server(self) -> BaseServerConfig:
        return self.settings.head()

    @cached_property
    def secrets(self) -> frozenset[str]:
        """Texts that must not be shown, for `redact`."""
        return secret_values(self.data)

    def server(self, name: str) -> ServerInstance:
        for server in self.servers:
            if server.name == name:
                return server
        hint = did_you_mean(name, (server.name for server in self.servers))
        raise ServerRefNotFoundError(f"no server {name!r} in the configuration; {hint}")

    def masked(self) -> dict[str, Any]:
        """All values, with `****` for every secret."""
        masked: dict[str, Any] = mask_secrets(self.data)
        return masked

    def to_yaml(self, masked: bool = True, *, ascii_only: bool = False) -> str:
        import yaml

        dumper: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        data = json.loads(
            _encode(self.masked() if masked else self.data), object_hook=_unpaired
        )  # no aliases
        return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=not ascii_only)

    def with_layer(self, values: Mapping[str, Any]) -> "GymConfig":
        """A copy with nested values merged into it; a key may contain dots."""
        return self._with_data(deep_merge(self.data, plain_data(values)))

    def _with_data(self, data: dict[str, Any]) -> "GymConfig":
        return replace(self, data=data, servers=_instances(data, [_path(server) for server in self.servers]))


def dump_config(config: GymConfig) -> bytes:
    """The whole configuration as JSON, with secrets: for a child process, never for a file or a log."""
    return _encode(
        {
            "data": config.data,
            "servers": [[server.name, server.kind, server.implementation] for server in config.servers],
            "texts": dict(config.texts),
            "config_paths": [str(path) for path in config.config_paths],
            "roots": [str(root) for root in config.roots],
            "undeclared": sorted(config.undeclared),
        }
    )


def config_from_bytes(data: bytes) -> GymConfig:
    """The configuration from the output of `dump_config`."""
    fields = json.loads(data, object_hook=_unpaired)
    paths = [InstancePath(*path) for path in fields["servers"]]
    return GymConfig(
        data=fields["data"],
        servers=_instances(fields["data"], paths),
        texts=fields["texts"],
        config_paths=tuple(Path(path) for path in fields["config_paths"]),
        roots=tuple(Path(root) for root in fields["roots"]),
        undeclared=frozenset(fields["undeclared"]),
    )


def _instances(data: Mapping[str, Any], paths: list[InstancePath]) -> tuple[ServerInstance, ...]:
    host = GymSettings.model_validate(data).default_host
    return tuple(instance_at(data, path, host) for path in paths)


def _path(server: ServerInstance) -> InstancePath:
    return InstancePath(server.name, server.kind, server.implementation)


def _encode(data: Any) -> bytes:
    return json.dumps(_paired(data), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _paired(value: Any) -> Any:
    """The data with every mapping that has keys other than strings as a list of pairs, for JSON."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _paired(item) for key, item in value.items()}
        return {_PAIRS_KEY: [[key, _paired(item)] for key, item in value.items()]}
    return [_paired(item) for item in value] if isinstance(value, list | tuple) else value


def _unpaired(value: dict[str, Any]) -> Any:
    return dict(value[_PAIRS_KEY]) if _PAIRS_KEY in value else value
