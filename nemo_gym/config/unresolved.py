"""Why an interpolation has no value: the keys and environment variables it needs that have none.

The references in its text are followed through the data. Error texts of OmegaConf are never parsed.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.config.directives import Path, dotted, step
from nemo_gym.config.merge import MISSING
from nemo_gym.environment_variables import is_variable_set

_INNERMOST = re.compile(r"(?<!\\)\$\{([^${}]*)\}")
_INDEX = re.compile(r"\[([^\[\]]*)\]")
_ENVIRONMENT_RESOLVER = "oc.env"
_UNKNOWN = "\0"
"""Replaces a reference whose value is not known; a reference around it is not followed."""


@dataclass
class Needs:
    """What has no value, in the order in which it was found."""

    keys: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    circle: list[Path] = field(default_factory=list)
    """The paths of the first circle of references, its start repeated at the end."""


def unmet_needs(root: dict[str, Any], path: Path, text: str) -> Needs:
    """What the interpolations of a text at this path need and do not find."""
    search = _Search(root)
    search.follow_parts(search.follow_text(path, text))
    needs = search.needs
    return Needs(list(dict.fromkeys(needs.keys)), list(dict.fromkeys(needs.variables)), needs.circle)


@dataclass(frozen=True)
class _Found:
    path: Path
    value: Any


class _Search:
    def __init__(self, root: dict[str, Any]) -> None:
        self.needs = Needs()
        self._root = root
        self._followed: dict[Path, _Found | None] = {}
        self._containers: set[Path] = set()
        self._open: list[Path] = []
        """The references and containers that are being followed, outermost first."""

    def follow_text(self, path: Path, text: str) -> _Found | None:
        """Follow all references in a text; returns the target if the text is one reference that has one."""
        if self._is_circle(path):
            return None
        if path not in self._followed:
            self._open.append(path)
            self._followed[path] = self._follow(path, text)
            self._open.pop()
        return self._followed[path]

    def follow_parts(self, found: _Found | None) -> None:
        """A reference to a container needs everything in it."""
        if found is None or not isinstance(found.value, dict | list) or self._is_circle(found.path):
            return
        if found.path in self._containers:
            return
        self._containers.add(found.path)
        parts = found.value.items() if isinstance(found.value, dict) else enumerate(found.value)
        self._open.append(found.path)
        for key, part in parts:
            self.follow_parts(self._entered((*found.path, key), part))
        self._open.pop()

    def _is_circle(self, path: Path) -> bool:
        """Whether this path is already being followed; the first time, record the circle."""
        if path not in self._open:
            return False
        self.needs.circle = self.needs.circle or [*self._open[self._open.index(path) :], path]
        return True

    def _follow(self, path: Path, text: str) -> _Found | None:
        while match := _INNERMOST.search(text):
            found = self._target(path, match[1])
            if match[0] == text:
                return found
            is_known = found is not None and not isinstance(found.value, dict | list)
            shown = str(found.value) if found is not None and is_known else _UNKNOWN
            text = text[: match.start()] + shown + text[match.end() :]
        return None

    def _target(self, path: Path, reference: str) -> _Found | None:
        name, colon, arguments = reference.partition(":")
        if colon:
            if name.strip() == _ENVIRONMENT_RESOLVER and "," not in arguments:
                self._need_variable(arguments.strip().strip("'\""))
            return None
        return None if _UNKNOWN in reference else self._node(path, reference.strip())

    def _need_variable(self, name: str) -> None:
        if _UNKNOWN not in name and not is_variable_set(name):
            self.needs.variables.append(name)

    def _node(self, path: Path, name: str) -> _Found | None:
        """The node that `${name}` refers to, seen from `path`."""
        key = name.lstrip(".")
        dots = len(name) - len(key)
        base: Path = path[: len(path) - dots] if dots else ()
        parts = _INDEX.sub(r".\1", key).split(".")
        found: _Found | None = _Found(base, self._at(base))
        for part in parts:
            if found is None:
                return None
            index = step(found.value, part)
            if index is None:
                self.needs.keys.append(dotted((*base, *parts)))
                return None
            found = self._entered((*found.path, index), found.value[index])
        return found

    def _at(self, path: Path) -> Any:
        node: Any = self._root
        for part in path:
            node = node[part]
        return node

    def _entered(self, path: Path, node: Any) -> _Found | None:
        """The node itself, or the one that its own interpolation refers to."""
        if node == MISSING:
            self.needs.keys.append(dotted(path))
            return None
        return self.follow_text(path, node) if isinstance(node, str) and "${" in node else _Found(path, node)
