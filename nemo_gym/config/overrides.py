"""The command line: `+key=value`, `++key=value`, `key=value`, `~key`, `--key value`, `--key=value`."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.config.grammar import is_quoted, parse_value
from nemo_gym.config.merge import deep_merge, merge_dotted, nested
from nemo_gym.config.plain_data import plain_data
from nemo_gym.config.secrets import MASK, is_secret_key, is_secret_path, redact
from nemo_gym.errors import ConfigSyntaxError
from nemo_gym.types import (
    CONFIG_PATHS_KEY_NAME,
    POLICY_API_KEY_KEY_NAME,
    POLICY_BASE_URL_KEY_NAME,
    POLICY_MODEL_NAME_KEY_NAME,
)

_STRING_KEYS = (POLICY_BASE_URL_KEY_NAME, POLICY_API_KEY_KEY_NAME, POLICY_MODEL_NAME_KEY_NAME)
_KEY = re.compile(r"[\w$/@:-]+(?:\.[\w$/@:-]+)*")
_FLAG_VALUES = ("true", "false")
_EXAMPLE = "write +key=value, --key value or ~key, for example +limit=3"


@dataclass(frozen=True)
class Overrides:
    """Values from the command line or a Python caller that override the files."""

    values: dict[str, Any] = field(default_factory=dict, repr=False)
    deletions: tuple[str, ...] = ()
    """Dotted keys to delete before `values` are merged in."""
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The text of every value as typed, by dotted key."""


@dataclass(frozen=True)
class _Argument:
    key: str
    text: str | None
    """None: the key is deleted."""


def parse_arguments(
    argv: Sequence[str], string_fields: Collection[str] = (), flag_fields: Collection[str] = ()
) -> Overrides:
    """The arguments as overrides; if two set the same key, the later one wins. The value of a field in
    `string_fields` is its text unchanged if the grammar rejects it or reads it as something else."""
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    deletions: list[str] = []
    for argument in _arguments(argv, flag_fields):
        if argument.text is None:
            deletions.append(argument.key)
            continue
        value = value_of(argument.key, argument.text, string_fields)
        values = deep_merge(values, nested(argument.key, value))
        texts = {key: text for key, text in texts.items() if not key.startswith(f"{argument.key}.")}
        texts[argument.key] = argument.text
    return Overrides(values, tuple(deletions), texts)


def overrides_from(
    source: Mapping[str, Any] | Sequence[str] | Overrides | None, string_fields: Collection[str] = ()
) -> Overrides:
    """Overrides of a Python caller: a mapping (dotted keys allowed, values as they are) or override texts."""
    if source is None:
        return Overrides()
    if isinstance(source, Overrides):
        return source
    if isinstance(source, Mapping):
        return Overrides(merge_dotted({}, plain_data(source)))
    return parse_arguments([source] if isinstance(source, str) else source, string_fields)


def value_of(key: str, text: str, string_fields: Collection[str] = ()) -> Any:
    """The value of one override."""
    if key == CONFIG_PATHS_KEY_NAME:
        return _paths(text)
    if key not in string_fields and not _is_string_key(key):
        return parse_value(text).value
    value = parse_value(text).value
    return value if isinstance(value, str) or text == "null" else text


def _is_string_key(key: str) -> bool:
    last = key.rpartition(".")[2]
    return last in _STRING_KEYS or is_secret_key(last)


def _paths(text: str) -> Any:
    """The paths in `[a,b]`, `a,b` or `a`. Texts that the grammar rejects (`~`, spaces, …) are valid paths."""
    parsed = parse_value(text)
    if not parsed.literal:
        return parsed.value
    if text.startswith("[") != text.endswith("]"):
        raise ConfigSyntaxError(f"config_paths: {text!r} has an unmatched bracket; write [a.yaml,b.yaml]")
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    parts = (part.strip() for part in inside.split(","))
    return [part[1:-1] if is_quoted(part) else part for part in parts if part]


def _arguments(argv: Sequence[str], flag_fields: Collection[str]) -> Iterator[_Argument]:
    position = 0
    while position < len(argv):
        source = argv[position]
        following = argv[position + 1] if position + 1 < len(argv) else None
        position += 1
        if not source.startswith("--"):
            yield _override(source)
            continue
        name, equals, text = source[2:].partition("=")
        key = _option_key(source, name)
        if not equals:
            value = _option_value(key, following, flag_fields)
            position += value is not None
            text = "true" if value is None else value
        yield _Argument(key, text)


def _option_value(key: str, following: str | None, flag_fields: Collection[str]) -> str | None:
    """The argument after `--key` if it is its value; None if `--key` has no value."""
    if following is None or following.startswith("--") or re.match(r"\+{1,2}[^=\s]+=", following):
        return None
    if key in flag_fields and following.lower() not in _FLAG_VALUES:
        return None
    return following


def _option_key(source: str, name: str) -> str:
    first, dot, rest = name.partition(".")
    return _checked(source, first.replace("-", "_") + dot + rest)


def _override(source: str) -> _Argument:
    if source.startswith("~"):
        key, equals, _ = source[1:].partition("=")
        if equals:
            raise ConfigSyntaxError(f"argument {_shown(source)}: a deletion has no value; write ~{key}")
        return _Argument(_checked(source, key), None)
    key, equals, text = source.partition("=")
    if not equals:
        raise ConfigSyntaxError(f"argument {_shown(source)} has no `=`; {_EXAMPLE}")
    return _Argument(_checked(source, re.sub(r"^\+{1,2}", "", key)), text)


def _checked(source: str, key: str) -> str:
    if not key:
        raise ConfigSyntaxError(f"argument {_shown(source)} has no key; {_EXAMPLE}")
    if not _KEY.fullmatch(key):
        raise ConfigSyntaxError(f"argument {_shown(source)}: {key!r} is not a valid key; {_EXAMPLE}")
    return key


def _shown(source: str) -> str:
    key, equals, _ = source.partition("=")
    return repr(f"{key}={MASK}") if equals and is_secret_path(key) else repr(redact(source))
