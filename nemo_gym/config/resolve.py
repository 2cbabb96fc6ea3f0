"""Interpolation: OmegaConf fills in every `${…}`. All values that are missing are reported in one error.

OmegaConf is loaded only if the data contains an interpolation.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nemo_gym.config.directives import Path, dotted
from nemo_gym.config.hints import Origins, defined_in, listed
from nemo_gym.config.merge import MISSING
from nemo_gym.config.secrets import is_secret_path
from nemo_gym.config.unresolved import unmet_needs
from nemo_gym.errors import ConfigError, ConfigMissingValuesError, ConfigSyntaxError
from nemo_gym.types import POLICY_API_KEY_KEY_NAME

if TYPE_CHECKING:
    from omegaconf import DictConfig


def resolve(values: dict[str, Any], origins: Origins | None = None) -> dict[str, Any]:
    """The data with all interpolations filled in and no value missing."""
    resolution = _Resolution(values, origins)
    resolved: dict[str, Any] = resolution.value((), values)
    resolution.raise_missing()
    return resolved


def fill_in(text: str, values: Mapping[str, Any]) -> str:
    """One text with its interpolations filled in from these values."""
    return str(resolve_part("config_paths", text, values))


def resolve_part(key: str, value: Any, values: Mapping[str, Any]) -> Any:
    """The value of one key with its interpolations filled in from these values."""
    resolution = _Resolution({**values, key: value})
    resolved = resolution.value((key,), value)
    resolution.raise_missing()
    return resolved


class _Resolution:
    def __init__(self, root: dict[str, Any], origins: Origins | None = None) -> None:
        self._root = root
        self._origins = origins or {}
        self._missing: dict[str, list[str]] = {}
        """Keys without a value, and the keys whose interpolations need them."""
        self._unset_variables: dict[str, list[str]] = {}

    def value(self, path: Path, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: self.value((*path, key), item) for key, item in node.items()}
        if isinstance(node, list):
            return [self.value((*path, index), item) for index, item in enumerate(node)]
        if isinstance(node, str) and "${" in node:
            return self._interpolated(path, node)
        if node == MISSING:
            self._missing.setdefault(dotted(path), [])
        return node

    def raise_missing(self) -> None:
        lines = [
            f"{key}{self._needed_by(users) if users else self._file_of(key)}"
            for key, users in self._missing.items()
        ]
        lines += [
            f"environment variable {name}: not set{self._needed_by(users)}; export {name}=<value>"
            for name, users in self._unset_variables.items()
        ]
        if lines:
            count = "1 value is" if len(lines) == 1 else f"{len(lines)} values are"
            raise ConfigMissingValuesError(f"{count} missing:{listed(lines)}\n{self._how_to_set()}")

    def _how_to_set(self) -> str:
        """Other users of the machine can see a command line, so it is not suggested for the key."""
        names = [key for key in self._missing if key != POLICY_API_KEY_KEY_NAME]
        hints = []
        if names or not self._missing:
            example = names[0] if names else "key"
            hints.append(
                f"set each on the command line, +{example}=<value>, or in env.yaml in the working directory"
            )
        if len(names) < len(self._missing):
            hints.append(
                f"set {POLICY_API_KEY_KEY_NAME} in env.yaml or in the environment variable POLICY_API_KEY "
                "(none if the endpoint needs no key)"
            )
        return "; ".join(hints)

    def _needed_by(self, users: list[str]) -> str:
        return f" (needed by {', '.join(users)}){self._file_of(users[0])}"

    def _file_of(self, key: str) -> str:
        return defined_in(key.split(".")[0], self._origins)

    def _interpolated(self, path: Path, text: str) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import InterpolationResolutionError

        try:
            node: Any = self._config
            for key in path:
                node = node[key]
            return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        except InterpolationResolutionError as error:
            self._note_needs(path, text, error)

    @cached_property
    def _config(self) -> "DictConfig":
        from omegaconf import OmegaConf
        from omegaconf.errors import GrammarParseError, OmegaConfBaseException

        try:
            return OmegaConf.create(self._root)
        except GrammarParseError as error:
            reason = "" if is_secret_path(str(error.full_key)) else f"{str(error.msg).splitlines()[0]}: "
            raise ConfigSyntaxError(
                f"{error.full_key}: {reason}not a valid interpolation; "
                r"write ${key}, or \${ for a literal ${"
            ) from error
        except OmegaConfBaseException as error:
            raise ConfigError(f"{str(error).splitlines()[0]}; correct the configuration") from error

    def _note_needs(self, path: Path, text: str, error: Exception) -> None:
        """Record which values the text needs and does not find; raise an error if that is not the reason."""
        needs = unmet_needs(self._root, path, text)
        if needs.circle:
            chain = " -> ".join(map(dotted, needs.circle))
            raise ConfigError(f"circular interpolation: {chain}; remove one of these references") from error
        for name in needs.variables:
            self._unset_variables.setdefault(name, []).append(dotted(path))
        for key in needs.keys:
            self._missing.setdefault(key, []).append(dotted(path))
        if not needs.keys and not needs.variables:
            reason = str(error).splitlines()[0]
            what = "its text" if is_secret_path(dotted(path)) else f"{text!r}"
            raise ConfigError(
                f"{dotted(path)}: {what} cannot be resolved: {reason}; correct the interpolation"
            ) from error
