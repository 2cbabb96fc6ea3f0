"""Prompt templates: a YAML file with `user` and `system` builds `responses_create_params.input` of a row.

Invariant: each `{field}` is replaced once, by a value of the row; braces in that value are not interpreted.
Rows are not changed in place, and an output file is complete or unchanged.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from nemo_gym.codec import encode_json
from nemo_gym.config import component_roots, find_file
from nemo_gym.config.roots import expand
from nemo_gym.config.yaml_file import load_yaml_file
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, JournalError
from nemo_gym.journal import make_parent, new_file, read_objects
from nemo_gym.types import RESPONSES_CREATE_PARAMS_KEY_NAME

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "PromptConfig",
    "apply_prompt_to_row",
    "fill_prompt",
    "load_prompt_config",
    "materialize_prompts",
    "validate_prompt_compatibility",
]

Row = Mapping[str, Any]
Message = dict[str, str]

_INPUT = "input"
_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_MORE_THAN_A_NAME = re.compile(r"[.\[\]!:]|^\s|\s$")
_FIX = "write {name} for a top-level field of the row, {{ and }} for literal braces"
# Not the codec's: with spaces after commas and colons, as in most JSON that models have seen.
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)


class PromptConfig(BaseModel):
    """The first messages of a task. `{field}` is replaced by a top-level field of the row."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    user: str
    """Template of the user message."""
    system: str | None = None
    """Template of the system message; None for no system message."""

    @field_validator("user", "system")
    @classmethod
    def _is_template(cls, text: str | None) -> str | None:
        if text is not None:
            _pieces(text)
        return text


def load_prompt_config(path: str | Path, roots: Sequence[Path] | None = None) -> PromptConfig:
    """The prompt in a YAML file; a relative path is searched for in the component roots."""
    file = _find(path, "prompt config", component_roots() if roots is None else roots)
    try:
        return PromptConfig.model_validate(load_yaml_file(file))
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors(include_url=False)))
        raise ConfigError(f"{file}: {problems}") from error


def fill_prompt(prompt_config: PromptConfig, row: Row) -> list[Message]:
    """The messages of one row."""
    messages = []
    if prompt_config.system is not None:
        messages.append({"role": "system", "content": _filled(prompt_config.system, row)})
    messages.append({"role": "user", "content": _filled(prompt_config.user, row)})
    return messages


def validate_prompt_compatibility(rows: Iterable[Row], prompt_config: PromptConfig | None = None) -> None:
    """Raise one error for all rows that already have an input. The prompt does not matter."""
    _refuse_conflicts([index for index, row in enumerate(rows) if _has_input(row)])


def apply_prompt_to_row(row: Row, prompt_config: PromptConfig) -> dict[str, Any]:
    """A copy of the row with the prompt as its `responses_create_params.input`.

    An existing input is replaced; use `validate_prompt_compatibility` to refuse it.
    """
    params = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(
            f"{RESPONSES_CREATE_PARAMS_KEY_NAME} is a {type(params).__name__}, not an object; "
            "correct it, or remove it; the prompt then creates one"
        )
    built = {**(params or {}), _INPUT: fill_prompt(prompt_config, row)}
    return {**row, RESPONSES_CREATE_PARAMS_KEY_NAME: built}


def materialize_prompts(
    input_jsonl_fpath: str | Path,
    output_jsonl_fpath: str | Path,
    prompt_config: PromptConfig | str | Path,
    roots: Sequence[Path] | None = None,
) -> int:
    """Write the rows of the input with the prompt applied; returns their number.

    The prompt may be a path. A relative input is searched for in the component roots; a relative output is in
    the working directory.
    """
    roots = component_roots() if roots is None else roots
    prompt = prompt_config
    if not isinstance(prompt, PromptConfig):
        prompt = load_prompt_config(prompt, roots)
    source = _find(input_jsonl_fpath, "input", roots)
    target = _checked_target(output_jsonl_fpath, source)
    try:
        make_parent(target)
        with new_file(target) as file:
            return _write_rows(file, source, prompt)
    except JournalError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else str(error)
        raise ConfigError(f"cannot write {target}: {reason}; choose another output file") from error


class _Piece(NamedTuple):
    """A part of a template: text, and the field that follows it."""

    text: str
    field: str | None


@lru_cache(maxsize=256)
def _pieces(template: str) -> tuple[_Piece, ...]:
    """The template, parsed."""
    pieces, text, end = [], "", 0
    for token in _TOKEN.finditer(template):
        text += template[end : token.start()]
        end = token.end()
        if token[0] in ("{{", "}}"):
            text += token[0][0]
            continue
        pieces.append(_Piece(text, _field_name(token)))
        text = ""
    return (*pieces, _Piece(text + template[end:], None))


def _field_name(token: re.Match[str]) -> str:
    shown = token[0] if len(token[0]) <= 40 else f"{token[0][:37]}..."
    name = token[0][1:-1]
    if len(token[0]) == 1:
        problem = f"`{shown}` is unmatched"
    elif not name:
        problem = "`{}` has no field name"
    elif _MORE_THAN_A_NAME.search(name):
        problem = f"{shown!r} contains more than a field name"
    else:
        return name
    line = token.string.count("\n", 0, token.start()) + 1
    raise ConfigError(f"line {line} of the template: {problem}; {_FIX}")


def _filled(template: str, row: Row) -> str:
    parts = []
    for text, field in _pieces(template):
        parts.append(text)
        if field is None:
            continue
        if field not in row:
            has = ", ".join(map(str, row)) or "no fields"
            raise ConfigError(
                f"the row has no field {field!r}, which the prompt uses; it has {has}; "
                f"add it to the row or correct the prompt ({_FIX})"
            )
        value = row[field]
        parts.append(value if isinstance(value, str) else _JSON.encode(value))
    return "".join(parts)


def _has_input(row: Row) -> bool:
    params = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    return isinstance(params, Mapping) and params.get(_INPUT) is not None


def _refuse_conflicts(indices: Sequence[int]) -> None:
    if indices:
        rows = f"row{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"
        raise ConfigError(
            f"{RESPONSES_CREATE_PARAMS_KEY_NAME}.{_INPUT} is already set in {rows} (counted from 0), and a "
            "prompt config would replace it; remove it from the data, or run without the prompt config"
        )


def _write_rows(file: IO[bytes], source: Path, prompt: PromptConfig) -> int:
    """Write the rows in one pass. After the first conflict, only look for further conflicts."""
    count, conflicts = 0, []
    for number, row in read_objects(source):
        if _has_input(row):
            conflicts.append(count)
        elif not conflicts:
            with _located(f"{source}:{number}"):
                file.write(encode_json(apply_prompt_to_row(row, prompt)) + b"\n")
        count += 1
    with _located(str(source)):
        _refuse_conflicts(conflicts)
    return count


@contextmanager
def _located(place: str) -> Iterator[None]:
    """Prefix the message of an error with the place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _checked_target(path: str | Path, source: Path) -> Path:
    target = expand(path).resolve()
    if os.path.exists(target) and os.path.samefile(target, source):
        raise ConfigError(f"{path}: output and input are the same file; choose another output file")
    if os.path.exists(target) and not os.path.isfile(target):
        raise ConfigError(f"{path}: a folder or a device, not a file; choose another output file")
    return target


def _find(path: str | Path, what: str, roots: Sequence[Path]) -> Path:
    try:
        found = find_file(path, roots)
    except OSError as error:
        raise ConfigError(
            f"{what} {str(path)!r} cannot be read: {error.strerror}; check its permissions"
        ) from error
    if found is None:
        searched = "" if expand(path).is_absolute() else f" in {', '.join(map(str, roots))}"
        raise ConfigPathNotFoundError(f"{what} {str(path)!r}: no such file{searched}; check the spelling")
    return found


def _problem(detail: "ErrorDetails") -> str:
    """An error that pydantic found in a prompt file, and how to correct it."""
    key = ".".join(map(str, detail["loc"]))
    match detail["type"]:
        case "missing":
            return (
                f'{key!r} is missing; for example, `{key}: "{{question}}"` uses the field question of the row'
            )
        case "extra_forbidden":
            return f"unknown key {key!r}; a prompt has 'user' and, optionally, 'system'"
        case "string_type":
            kind = type(detail["input"]).__name__
            return f"{key!r} is a {kind}, not text; write the template of the message in quotes"
        case _:
            return f"{key!r}: {detail['msg'].removeprefix('Value error, ')}"
