"""The directives `inherit_from`, `copy` and `_delete_key`, applied to the merged data.

The directives of a source are applied before the source is used. Inherited sources are removed at the end, so
any number of nodes may inherit from one.
"""

from typing import Any

from nemo_gym.config.hints import Origins, defined_in, did_you_mean
from nemo_gym.config.merge import (
    COPY_KEY,
    DELETE_KEY,
    INHERIT_KEY,
    deep_merge,
    delete_names,
    directive_mapping,
)
from nemo_gym.errors import ConfigError, InheritPathNotFoundError

Path = tuple[str | int, ...]

_SOURCE_KEYS = (INHERIT_KEY, COPY_KEY)
_DIRECTIVE_KEYS = (*_SOURCE_KEYS, DELETE_KEY)


def apply_directives(values: dict[str, Any], origins: Origins | None = None) -> dict[str, Any]:
    """The data with all directives applied; the argument is not changed."""
    expansion = _Expansion(values, origins or {})
    expanded: dict[str, Any] = expansion.expand((), values)
    for source in expansion.moved:
        expanded = _without(expanded, source)
    return expanded


def delete_path(values: dict[str, Any], dotted: str) -> dict[str, Any]:
    """`~a.b`. Inside a node that inherits, the deletion is applied after the inheritance."""
    remaining: dict[str, Any] = _delete(values, tuple(dotted.split(".")), dotted, f"~{dotted}")
    return remaining


class _Expansion:
    def __init__(self, root: dict[str, Any], origins: Origins) -> None:
        self.root = root
        self.origins = origins
        self.moved: dict[Path, None] = {}
        self._done: dict[Path, Any] = {}
        self._open: list[Path] = []

    def expand(self, path: Path, node: Any) -> Any:
        """The node with all directives in it applied."""
        if path in self._done:
            return self._done[path]
        if path in self._open:
            chain = [*self._open[self._open.index(path) :], path]
            names = " -> ".join(dotted(link) or "the whole configuration" for link in chain)
            raise ConfigError(f"circular inherit_from / copy: {names}; remove one of these links")
        self._open.append(path)
        self._done[path] = self._expand(path, node)
        self._open.pop()
        return self._done[path]

    def _expand(self, path: Path, node: Any) -> Any:
        node = directive_mapping(node) or node
        if isinstance(node, list):
            return [self.expand((*path, index), item) for index, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        local = {k: self.expand((*path, k), v) for k, v in node.items() if k not in _DIRECTIVE_KEYS}
        result = self._merged_with_sources(path, node, local)
        for name in delete_names(node.get(DELETE_KEY, [])):
            result = _delete(result, tuple(name.split(".")), name, self._where((*path, DELETE_KEY)))
        return result

    def _merged_with_sources(self, path: Path, node: dict[str, Any], local: dict[str, Any]) -> Any:
        sources = [self._source(path, key, node[key]) for key in _SOURCE_KEYS if key in node]
        if not sources:
            return local
        result = sources[0] if len(sources) == 1 else deep_merge(*sources)
        if local and not isinstance(result, dict):
            kind = type(result).__name__
            raise ConfigError(
                f"{self._where(path)}: keys cannot be merged into an inherited {kind}; remove {[*local]}"
            )
        return deep_merge(result, local) if local else result

    def _source(self, path: Path, key: str, name: object) -> Any:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{self._where((*path, key))}: {name!r} is not a dotted path; write {key}: a.b")
        source = self._find(name, f"{self._where(path)}: {key.removeprefix('_')} {name!r}")
        if key == INHERIT_KEY:
            self.moved[source] = None
        return self._value(source)

    def _find(self, name: str, where: str) -> Path:
        path: Path = ()
        for part in name.split("."):
            node = self._value(path) if self._is_directive(path) else self._raw(path)
            key = step(node, part)
            if key is None:
                inside = f" in {dotted(path)}" if path else ""
                names = map(str, node) if isinstance(node, dict) else ()
                hint = did_you_mean(part, (name for name in names if name not in _DIRECTIVE_KEYS))
                raise InheritPathNotFoundError(f"{where}: {part!r} not found{inside}; {hint}")
            path = (*path, key)
        return path

    def _value(self, path: Path) -> Any:
        """The expanded node. Below a directive, it exists only in the result of that directive."""
        for length in range(1, len(path)):
            if self._is_directive(path[:length]):
                node = self.expand(path[:length], self._raw(path[:length]))
                for part in path[length:]:
                    node = node[part]
                return node
        return self.expand(path, self._raw(path))

    def _is_directive(self, path: Path) -> bool:
        return any(_has_source(self._raw(path[:length])) for length in range(1, len(path) + 1))

    def _where(self, path: Path) -> str:
        return f"{dotted(path)}{defined_in(path[0], self.origins) if path else ''}"

    def _raw(self, path: Path) -> Any:
        node: Any = self.root
        for part in path:
            node = node[part]
        return node


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


def step(node: Any, part: str) -> str | int | None:
    if isinstance(node, dict) and part in node:
        return part
    if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
        return int(part)
    return None


def _without(node: Any, path: Path) -> Any:
    """The data without one node, and without mappings that are empty then."""
    if not isinstance(node, dict) or path[0] not in node:
        return node
    rest = {key: value for key, value in node.items() if key != path[0]}
    if len(path) == 1:
        return rest
    below = _without(node[path[0]], path[1:])
    return rest if below == {} else {key: below if key == path[0] else value for key, value in node.items()}


def _has_source(node: Any) -> bool:
    return bool(directive_mapping(node)) or (
        isinstance(node, dict) and any(key in node for key in _SOURCE_KEYS)
    )


def _delete(node: Any, parts: tuple[str, ...], name: str, where: str) -> Any:
    if _has_source(node):
        return deep_merge(node, {DELETE_KEY: ".".join(parts)})
    if not isinstance(node, dict) or parts[0] not in node:
        keys = map(str, node) if isinstance(node, dict) else ()
        raise ConfigError(f"{where}: no key {name!r} to delete; {did_you_mean(parts[0], keys)}")
    if len(parts) == 1:
        return {key: value for key, value in node.items() if key != parts[0]}
    return {**node, parts[0]: _delete(node[parts[0]], parts[1:], name, where)}
