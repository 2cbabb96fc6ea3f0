"""Refuses settings that nothing reads.

Only settings of the command line or of a Python caller can be unknown. Keys of YAML files never are, and
neither are keys that a file refers to (`${key}`), keys below a mapping of a file, and complete servers.
Fields of a server's block are checked when the class of its settings is known (`refuse_unknown_fields`).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from nemo_gym.config.global_keys import GymSettings
from nemo_gym.config.hints import listed
from nemo_gym.config.instances import is_instance
from nemo_gym.config.known_settings import GLOBAL_SETTINGS, AcceptedSettings
from nemo_gym.config.merge import COPY_KEY, INHERIT_KEY
from nemo_gym.config.overrides import Overrides
from nemo_gym.config.validation import shown_value
from nemo_gym.config_types import names_of_fields
from nemo_gym.errors import ConfigError
from nemo_gym.setting_names import close_matches, meant_settings

Path = tuple[str, ...]

_NEAR_MISS = 0.8
_BLOCK_DEPTH = 3
"""A server's block is at `<name>.<kind>.<implementation>`."""
_REFERENCE = re.compile(r"\$\{([^${}]*)([${]?)")
_RESOLVER = re.compile(r"\s*[\w.]+:")
_NAME = re.compile(r"[^\s,:'\"{}]+")
_INDEX = re.compile(r"\[([^\[\]]*)\]")


def undeclared_paths(
    overrides: Overrides, declared: Mapping[str, Any], texts: Iterable[str] = ()
) -> tuple[Path, ...]:
    """What the overrides set although no file declares it and nothing refers to it. `declared` are the merged
    values of all files; `texts` are further texts that may refer to keys."""
    new = [path for path in _leaves(overrides.values, ()) if not _is_in(path, declared)]
    if not new:
        return ()
    references = {*_references([overrides.values, declared, *texts], ())}
    return tuple(path for path in new if not any(_overlap(path, used) for used in references))


def refuse_unknown(
    undeclared: Iterable[Path], overrides: Overrides, declared: Mapping[str, Any], accepted: AcceptedSettings
) -> None:
    """Raise one error for all of the undeclared settings that are not accepted."""
    found = [_Unknown(path, overrides, declared, accepted) for path in undeclared]
    lines = dict.fromkeys(unknown.line() for unknown in found if unknown.is_refused())
    _raise(list(lines))


def refuse_unknown_fields(
    model_class: type[BaseModel], prefix: str, undeclared: Iterable[str], texts: Mapping[str, str]
) -> None:
    """Raise one error for all undeclared keys of the block at `prefix` that its class of settings lacks."""
    if model_class.model_config.get("extra") == "allow":
        return
    known = names_of_fields(model_class)
    lines = []
    for key in undeclared:
        name = key.removeprefix(f"{prefix}.").partition(".")[0]
        if key.startswith(f"{prefix}.") and name not in known:
            meant = [f"{prefix}.{close}" for close in close_matches(name, known, _NEAR_MISS)[:1]]
            otherwise = f"the settings of this server: {', '.join(sorted(known))}"
            lines.append(_line(f"{prefix}.{name}", meant, texts.get(key), otherwise))
    _raise(lines)


@dataclass(frozen=True)
class _Unknown:
    """A setting that may be unknown."""

    path: Path
    overrides: Overrides
    declared: Mapping[str, Any]
    accepted: AcceptedSettings

    def is_refused(self) -> bool:
        if self.accepted.only_near_misses:
            near = close_matches(self.path[0], self.accepted.fields, _NEAR_MISS)
            return bool(near) and self.path[0] not in near and not self._is_in_new_server()
        return not self._is_accepted()

    def line(self) -> str:
        text = self.overrides.texts.get(".".join(self.path))
        return _line(".".join(self.path), self._meant(), text, self.accepted.otherwise)

    def _is_accepted(self) -> bool:
        first = self.path[0]
        if first in self.accepted.fields or first in self.accepted.also:
            return self._is_in_global_model()
        if self._is_in_new_server():
            return True
        if is_instance(self.declared.get(first)):
            return _is_in(self.path[:_BLOCK_DEPTH], self.declared)
        return self._depth > 0 and not self._meant(_NEAR_MISS)

    def _is_in_global_model(self) -> bool:
        """Whether the field of a setting that is a model itself exists: `head_server.port`."""
        field = GymSettings.model_fields.get(self.path[0])
        model = field.annotation if field is not None else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or len(self.path) == 1:
            return True
        return self.path[1] in model.model_fields

    def _is_in_new_server(self) -> bool:
        """Whether the overrides define the whole server: its block has an entrypoint."""
        block: Any = self.overrides.values
        for key in self.path[:_BLOCK_DEPTH]:
            block = block.get(key) if isinstance(block, Mapping) else None
        return isinstance(block, Mapping) and "entrypoint" in block

    @property
    def _depth(self) -> int:
        """How many keys of the path the files declare."""
        return next(d for d in range(len(self.path), -1, -1) if _is_in(self.path[:d], self.declared))

    def _meant(self, cutoff: float = 0.6) -> list[str]:
        """Dotted keys that may be meant."""
        depth, path = self._depth, self.path
        if depth == 0 and path[0] in GymSettings.model_fields:
            depth, siblings = 1, _fields_of(GymSettings, path[0])
        elif depth == 0:
            others = [*GLOBAL_SETTINGS, *map(str, self.declared), "help"]
            names = meant_settings(path[0], self.accepted.fields, others)
            return [".".join((name, *path[1:])) for name in names]
        else:
            siblings = [str(key) for key in _at(path[:depth], self.declared)]
        close = close_matches(path[depth], siblings, cutoff)[:1]
        return [".".join((*path[:depth], name, *path[depth + 1 :])) for name in close]


def _fields_of(model_class: type[BaseModel], name: str) -> Collection[str]:
    annotation = model_class.model_fields[name].annotation
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation.model_fields if is_model else ()  # type: ignore[union-attr]  # checked above


def _line(key: str, meant: Sequence[str], text: str | None, otherwise: str) -> str:
    """The message about one key. On the command line, `text` is its value."""
    if meant == ["help"]:
        return f"{key}: unknown; did you mean --help?"
    shown = [name if text is None else f"+{name}={shown_value(name, text)}" for name in meant]
    return f"{key}: unknown; " + (f"did you mean {' or '.join(shown)}?" if meant else otherwise)


def _raise(lines: Sequence[str]) -> None:
    if lines:
        raise ConfigError(
            lines[0] if len(lines) == 1 else f"{len(lines)} settings are unknown:{listed(lines)}"
        )


def _leaves(value: Mapping[Any, Any], path: Path) -> Iterator[Path]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, (*path, str(key)))
        else:
            yield (*path, str(key))


def _at(path: Path, values: Any) -> Any:
    for key in path:
        values = values[int(key)] if isinstance(values, list) else values[key]
    return values


def _is_in(path: Path, values: Any) -> bool:
    """Whether a path leads to a value. A value that is not a mapping is replaced as a whole."""
    for key in path:
        if not isinstance(values, Mapping):
            return True
        if key not in values:
            return False
        values = values[key]
    return True


def _overlap(path: Path, used: Path) -> bool:
    """Whether a reference to one of them needs the other."""
    return all(mine == other for mine, other in zip(path, used, strict=False))


def _references(value: Any, path: Path) -> Iterator[Path]:
    """The paths that interpolations and directives in a value refer to. One that is computed by another
    interpolation is cut off there."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in (INHERIT_KEY, COPY_KEY):
                yield _path(str(item))
            yield from _references(item, (*path, str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _references(item, (*path, ""))
    elif isinstance(value, str) and "${" in value:
        for match in _REFERENCE.finditer(value):
            yield from _names(match[1], path, is_whole=not match[2])


def _names(inside: str, path: Path, *, is_whole: bool) -> Iterator[Path]:
    """What the text between `${` and the next bracket refers to."""
    resolver = _RESOLVER.match(inside)
    if resolver:
        yield from filter(None, (_path(name) for name in _NAME.findall(inside[resolver.end() :])))
        return
    name = inside.strip()
    dots = len(name) - len(name.lstrip("."))
    found = _path(name[dots:])
    if not is_whole and not name.endswith("."):
        found = found[:-1]
    yield (*(path[: len(path) - dots] if dots else ()), *found)


def _path(name: str) -> Path:
    return tuple(part for part in _INDEX.sub(r".\1", name).split(".") if part)
