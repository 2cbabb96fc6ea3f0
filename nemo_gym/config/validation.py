"""Validates configuration data with a pydantic class. One error names every wrong field."""

import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from nemo_gym.config.hints import listed
from nemo_gym.config.plain_data import plain_data
from nemo_gym.config.secrets import MASK, is_secret_key, is_secret_path, mask_secrets, redact
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

_NAMES = re.compile(r"([\w-]+)[\"']?\s*[:=]")


def validate_fields(
    model_class: type[Model],
    data: Mapping[str, Any],
    texts: Mapping[str, str] | None = None,
    prefix: str = "",
    roots: Sequence[Path] = (),
) -> Model:
    """`data` (the mapping at `prefix`) as `model_class`. `texts` are the raw override texts by dotted key; a
    string field takes its text unchanged. A class that looks for files finds `roots` in pydantic's validation
    context, as `component_roots`."""
    texts = texts or {}
    values = with_texts(model_class, plain_data(data), texts, prefix)
    try:
        return model_class.model_validate(values, context={"component_roots": roots})
    except ValidationError as error:
        raise ConfigError(_message(problem_lines(error, prefix, model_class))) from error


def string_fields(model_class: type[BaseModel]) -> frozenset[str]:
    """The fields that are `str` or `str | None`, for `parse_arguments`."""
    return frozenset(name for name, field in model_class.model_fields.items() if _is_text(field.annotation))


def flag_fields(model_class: type[BaseModel]) -> frozenset[str]:
    """The fields that are `bool` or `bool | None`."""
    fields = model_class.model_fields.items()
    return frozenset(name for name, field in fields if _members(field.annotation) == {bool})


def with_texts(
    model_class: type[BaseModel], values: dict[str, Any], texts: Mapping[str, str], prefix: str = ""
) -> dict[str, Any]:
    """The values, with the raw text for each string field that the grammar read as something else."""
    changed = {
        name: texts[_join(prefix, name)]
        for name in string_fields(model_class)
        if _join(prefix, name) in texts and not isinstance(values.get(name), str | None)
    }
    return {**values, **changed}


def problem_lines(
    error: ValidationError, prefix: str = "", model_class: type[BaseModel] | None = None
) -> list[str]:
    """One line per error of pydantic: field, value, what is allowed."""
    return [_problem_line(detail, prefix, model_class) for detail in error.errors(include_url=False)]


def _problem_line(detail: "ErrorDetails", prefix: str, model_class: type[BaseModel] | None) -> str:
    key = _join(prefix, ".".join(map(str, detail["loc"])))
    if detail["type"] == "missing":
        return f"{key}: required but not set; set it with +{key}=<value>"
    reason = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not detail["loc"] or (detail["type"] == "value_error" and isinstance(detail["input"], Mapping)):
        return f"{key or 'configuration'}: {redact(reason)}"
    return (
        f"{key}: {shown_value(key, detail['input'])} is not allowed: {reason}{_allowed(detail, model_class)}"
    )


def _allowed(detail: "ErrorDetails", model_class: type[BaseModel] | None) -> str:
    field = model_class.model_fields.get(str(detail["loc"][0])) if model_class else None
    if field is None or detail["type"] == "literal_error":  # which lists them itself
        return ""
    names = sorted(getattr(member, "__name__", str(member)) for member in _members(field.annotation))
    optional = ["null"] if _takes_none(field.annotation) else []
    return f" ({' or '.join([*names, *optional])})"


def shown_value(key: str, value: object) -> str:
    """The value of a setting for a message, without secrets."""
    if is_secret_path(key):
        return MASK
    if isinstance(value, str) and any("key" in name or is_secret_key(name) for name in _NAMES.findall(value)):
        return MASK  # a mapping that could not be parsed
    text = redact(value if isinstance(value, str) else repr(mask_secrets(value)))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _message(lines: Iterable[str]) -> str:
    lines = list(lines)
    return lines[0] if len(lines) == 1 else f"{len(lines)} settings are invalid:{listed(lines)}"


def _is_text(annotation: object) -> bool:
    return _members(annotation) == {str}


def _takes_none(annotation: object) -> bool:
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


def _members(annotation: object) -> set[object]:
    """The types of a union without None; any other type alone."""
    if get_origin(annotation) in (Union, types.UnionType):
        return {_bare(member) for member in get_args(annotation) if member is not type(None)}
    return {annotation}


def _bare(annotation: object) -> object:
    """A type without the constraints on it."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix and key else prefix or key
