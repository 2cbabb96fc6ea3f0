"""Reads one YAML file as a plain mapping. Numbers are read as OmegaConf does; timestamps stay text."""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.errors import ConfigError, ConfigSyntaxError

if TYPE_CHECKING:
    import yaml

_FLOAT = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)
_TAG = re.compile(r"the tag '.*'")
_MERGE_TAG = "tag:yaml.org,2002:merge"
_PLAIN = (str, int, float, bool, type(None))
_FIXES = (
    ("cannot start any token", "indent with spaces, not tabs, and quote a value that starts with @, % or `"),
    ("mapping values are not allowed", "quote a value that contains `: `, or correct the indentation"),
    ("did not find expected node content", "close open brackets, and quote ??? inside braces"),
    ("expected a single document", "write one document per file, without `---`"),
    ("duplicate key", "rename one of the two, or merge them"),
    ("could not determine a constructor", "remove the tag"),
)


def load_yaml_file(path: Path) -> dict[str, Any]:
    """The mapping in a file; an empty mapping for an empty file."""
    values = load_yaml(_read(path), source=str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigSyntaxError(
            f"{path}:1:1: the top level is a {type(values).__name__}, not a mapping; write `key: value` lines"
        )
    return values


def load_yaml(text: str, source: str) -> Any:
    import yaml

    loader = loader_class()(text)
    try:
        node = loader.get_single_node()
        _check_keys(node, set())
        return None if node is None else _plain(loader.construct_document(node), ())
    except yaml.MarkedYAMLError as error:
        raise ConfigSyntaxError(_message(source, error)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigSyntaxError(f"{source}:1:1: {' '.join(str(error).split())}; correct the YAML") from error
    except RecursionError as error:
        raise ConfigSyntaxError(
            f"{source}:1:1: nested too deeply, or an alias inside its own anchor; flatten it, or "
            "remove the alias"
        ) from error
    finally:
        loader.dispose()


@cache
def loader_class() -> "type[yaml.SafeLoader]":
    """A safe loader, from libyaml if possible, that reads floats as OmegaConf does."""
    import yaml

    base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: type[yaml.SafeLoader] = type("ConfigLoader", (base,), {})
    loader.yaml_implicit_resolvers = {
        start: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":float"))]
        for start, resolvers in base.yaml_implicit_resolvers.items()
    }
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return loader


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigSyntaxError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; check the file's permissions"
        ) from error


def _check_keys(node: "yaml.Node | None", seen: set[int]) -> None:
    """Refuse duplicate keys in a mapping: YAML would silently drop the first."""
    import yaml

    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, seen)
    elif isinstance(node, yaml.MappingNode):
        _check_mapping(node)
        for _, value in node.value:
            _check_keys(value, seen)


def _check_mapping(node: "yaml.MappingNode") -> None:
    import yaml

    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
            continue
        if (key.tag, key.value) in lines:
            problem = f"duplicate key {key.value!r}, first in line {lines[key.tag, key.value]}"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        lines[key.tag, key.value] = key.start_mark.line + 1


def _plain(value: Any, path: tuple[object, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, _PLAIN):
        return value
    where = ".".join(map(str, path))
    raise ValueError(f"{where}: a value of type {type(value).__name__} is not allowed")


def _message(source: str, error: "yaml.MarkedYAMLError") -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    problem = _TAG.sub("a tag", problem)  # a password that starts with `!` is read as one
    fix = next((fix for sign, fix in _FIXES if sign in problem), "correct the YAML there")
    return f"{place}: {problem}; {fix}"
