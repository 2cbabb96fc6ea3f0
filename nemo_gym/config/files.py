"""The files of a configuration, in the order in which they override each other.

A file comes after all files that it names, so it overrides them; otherwise the order of the names counts. A
file that is named twice is used once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config.hints import listed
from nemo_gym.config.roots import find_close_files, find_file
from nemo_gym.config.yaml_file import load_yaml_file
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.types import CONFIG_PATHS_KEY_NAME

FillIn = Callable[[str, Mapping[str, Any]], str]
"""Fills the interpolations of a path from the values of the file that names it."""


@dataclass(frozen=True)
class ConfigFile:
    path: Path
    values: dict[str, Any]
    """Its content without `config_paths`."""


@dataclass(frozen=True)
class FileSet:
    """Loads files and the files that they name, lowest first."""

    roots: Sequence[Path]
    fill_in: FillIn
    files: dict[Path, ConfigFile] = field(default_factory=dict)
    path_texts: list[str] = field(default_factory=list)
    """The paths that the files name, as written."""

    def add(self, paths: Iterable[str | Path], named_by: str) -> None:
        for path in paths:
            self._add(self._find(path, named_by), ())

    def _add(self, path: Path, chain: tuple[Path, ...]) -> None:
        if path in chain:
            names = " -> ".join(map(str, (*chain[chain.index(path) :], path)))
            raise ConfigError(f"circular config_paths: {names}; remove one of these entries")
        if path in self.files:
            return
        values = load_yaml_file(path)
        for named in self._named(path, values):
            self._add(self._find(named, str(path)), (*chain, path))
        self.files[path] = ConfigFile(path, without_paths(values))

    def _named(self, path: Path, values: dict[str, Any]) -> Iterator[str]:
        for named in path_list(values.get(CONFIG_PATHS_KEY_NAME), str(path)):
            self.path_texts.append(named)
            yield self.fill_in(named, values) if "${" in named else named

    def _find(self, path: str | Path, named_by: str) -> Path:
        found = find_file(path, self.roots)
        if found is None:
            raise ConfigPathNotFoundError(_not_found(path, named_by, self.roots))
        return found.resolve()


def without_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != CONFIG_PATHS_KEY_NAME}


def path_list(value: object, source: str) -> list[str]:
    """The value of `config_paths` as a list: it may be empty, one path, or a list of paths."""
    if value is None or value == "":
        return []
    paths = [value] if isinstance(value, str | Path) else value
    if isinstance(paths, Sequence) and all(isinstance(path, str | Path) for path in paths):
        return [str(path) for path in paths]
    raise ConfigError(f"{source}: config_paths is {value!r}; write a list of paths, [first.yaml,second.yaml]")


def _not_found(path: str | Path, named_by: str, roots: Sequence[Path]) -> str:
    close = find_close_files(path, roots)
    hint = f"did you mean {' or '.join(map(str, close))}?" if close else "check the spelling"
    searched = "" if Path(path).expanduser().is_absolute() else f"; searched in{listed(map(str, roots))}\n"
    return (
        f"config path {str(path)!r}, named by {named_by}: no such file{searched or '; '}"
        f"{hint} (to search more folders, set NEMO_GYM_EXTRA_ROOTS)"
    )
