"""Interpolation. Every `${…}` gets its value; everything that has none is reported in one error.

Plain references (`${a.b}`, alone or inside text) are followed here, as OmegaConf would; all others
(resolvers, relative or nested ones, escapes) go to OmegaConf, which is then loaded for the first time.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nemo_gym.config.directives import Path, dotted, step
from nemo_gym.config.hints import Origins, defined_in, listed
from nemo_gym.config.merge import MISSING
from nemo_gym.config.unresolved import unmet_needs
from nemo_gym.errors import ConfigError, ConfigMissingValuesError, ConfigSyntaxError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}", re.ASCII)


def resolve(values: dict[str, Any], origins: Origins | None = None) -> dict[str, Any]:
    """The data with all interpolations filled in and nothing missing."""
    resolution = _Resolution(values, origins)
    resolved: dict[str, Any] = resolution.value((), values)
    resolution.raise_problems()
    return resolved


def fill_in(text: str, values: Mapping[str, Any]) -> str:
    """One text with its interpolations filled in from these values."""
    resolution = _Resolution({**values, "config_paths": text})
    filled = resolution.value(("config_paths",), text)
    resolution.raise_problems()
    return str(filled)


class _Resolution:
    def __init__(self, root: dict[str, Any], origins: Origins | None = None) -> None:
        self.root = root
        self.origins = origins or {}
        self._done: dict[Path, Any] = {}
        self._open: list[Path] = []
        self._missing: dict[str, list[str]] = {}
        self._unset_variables: dict[str, list[str]] = {}
        self._config: DictConfig | None = None

    def value(self, path: Path, node: Any) -> Any:
        if isinstance(node, str):
            if "${" not in node:
                return self._scalar(path, node)
        elif not isinstance(node, dict | list):
            return node
        if path in self._done:
            return self._done[path]
        self._enter(path)
        self._done[path] = self._resolved(path, node)
        self._open.pop()
        return self._done[path]

    def raise_problems(self) -> None:
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
            example = next(iter(self._missing), "key")
            raise ConfigMissingValuesError(
                f"{count} missing:{listed(lines)}\n"
                f"set each on the command line, +{example}=<value>, or in env.yaml in the working directory"
            )

    def _needed_by(self, users: list[str]) -> str:
        return f" (needed by {', '.join(users)}){self._file_of(users[0])}"

    def _file_of(self, key: str) -> str:
        return defined_in(key.split(".")[0], self.origins)

    def _scalar(self, path: Path, node: str) -> str | None:
        if node != MISSING:
            return node
        self._missing.setdefault(dotted(path), [])
        return None

    def _enter(self, path: Path) -> None:
        if path in self._open:
            chain = [*self._open[self._open.index(path) :], path]
            raise ConfigError(f"interpolation goes round in a circle: {' -> '.join(map(dotted, chain))}")
        self._open.append(path)

    def _resolved(self, path: Path, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: self.value((*path, key), item) for key, item in node.items()}
        if isinstance(node, list):
            return [self.value((*path, index), item) for index, item in enumerate(node)]
        whole = _REFERENCE.fullmatch(node)
        if whole:
            return self._target(whole[1])
        if "\\" not in node and "${" not in _REFERENCE.sub("", node):
            return _REFERENCE.sub(lambda match: str(self._target(match[1])), node)
        return self._by_omegaconf(path, node)

    def _target(self, name: str) -> Any:
        """What `${name}` stands for; the way there may itself lead through interpolations."""
        node: Any = self.root
        path: Path = ()
        raw = True
        for part in name.split("."):
            if raw and isinstance(node, str) and "${" in node:
                node, raw = self.value(path, node), False
            key = step(node, part)
            if key is None:
                return self._miss(dotted(path) if node == MISSING else name)
            node, path = node[key], (*path, key)
        if node == MISSING:
            return self._miss(dotted(path))
        return self.value(path, node) if raw else node

    def _miss(self, name: str) -> None:
        self._missing.setdefault(name, []).append(dotted(self._open[-1]))

    def _by_omegaconf(self, path: Path, text: str) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import InterpolationResolutionError

        try:
            node: Any = self._omegaconf()
            for key in path:
                node = node[key]
            return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        except InterpolationResolutionError as error:
            return self._unresolved(path, text, error)

    def _omegaconf(self) -> "DictConfig":
        if self._config is None:
            from omegaconf import OmegaConf
            from omegaconf.errors import GrammarParseError

            try:
                self._config = OmegaConf.create(self.root)
            except GrammarParseError as error:
                raise ConfigSyntaxError(
                    f"{error.full_key}: {str(error.msg).splitlines()[0]}: not an interpolation; "
                    r"write ${key}, or \${ where the text itself is meant"
                ) from error
        return self._config

    def _unresolved(self, path: Path, text: str, error: Exception) -> None:
        needs = unmet_needs(self.root, path, text)
        for name in needs.variables:
            self._unset_variables.setdefault(name, []).append(dotted(path))
        for key in needs.keys:
            self._missing.setdefault(key, []).append(dotted(path))
        if not needs.keys and not needs.variables:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{dotted(path)}: {text!r} cannot be resolved: {reason}") from error
