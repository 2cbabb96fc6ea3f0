"""Requests and answers as plain data, validated as their wire models would, without the models in between.

Invariant: of what JSON can say, `data_validator` makes what reading the JSON of the validated model gives, to
the order of its keys. Token lists, and parts that no model interprets, are passed on, not copied.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import SchemaValidator

from .wire_model import nan_is_null, null_is_nan, same_whole_numbers, whole_numbers

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "takes_data"
_ON_DATA = {null_is_nan: nan_is_null, whole_numbers: same_whole_numbers}
"""Validators that do something else where the result is data, not a model."""
_NOT_SCHEMAS = frozenset(("metadata", "serialization", "default", "default_factory"))
_NAMED = ("fields", "choices")
"""Where schemas stand under names that are not theirs."""
_KNOWN = {"type", "schema", "metadata"}
"""What may be said of a field of a model; others (an alias, an exclusion) are about how it is written."""


class OddJson(dict[str, Any]):
    """An object with NaN or half a surrogate pair in it: written as JSON it is another, or cannot be."""


def takes_data(function: Function) -> Function:
    """Mark the function of a route that takes its body as plain data too, and gives back plain data.

    Body and answer are wire models. A caller in this process gets the answer validated, sharing token lists
    and parts that no model interprets: the function keeps nothing of it.
    """
    setattr(function, _MARK, function)
    return function


def is_on_data(function: object) -> bool:
    """Whether `takes_data` marks it; one that wraps such a function is not meant."""
    function = getattr(function, "__func__", function)
    return function is getattr(function, _MARK, None)


@cache
def data_validator(model: type[BaseModel], *, with_defaults: bool) -> SchemaValidator:
    """A validator that gives what was set on the model, or all of its fields, as data."""
    model.model_rebuild()  # where its build was put off
    return SchemaValidator(_on_data(model.__pydantic_core_schema__, with_defaults))


def _on_data(schema: Any, with_defaults: bool) -> Any:
    """The schema with every model in it as a dict of the same fields."""
    if isinstance(schema, list | tuple):
        return type(schema)(_on_data(part, with_defaults) for part in schema)
    if not isinstance(schema, dict):
        return _ON_DATA.get(schema, schema) if callable(schema) else schema
    kind = schema.get("type")
    if kind == "model":
        return _as_dict(schema, with_defaults)
    if kind == "default" and (model := _model_made_by(schema)) is not None:
        schema = {**schema, "default_factory": lambda: model().model_dump(mode="json")}
    return {key: _part(key, part, with_defaults) for key, part in schema.items()}


def _part(key: str, part: Any, with_defaults: bool) -> Any:
    if key in _NOT_SCHEMAS:
        return part
    if key in _NAMED and isinstance(part, dict):
        return {name: _on_data(inner, with_defaults) for name, inner in part.items()}
    return _on_data(part, with_defaults)


def _as_dict(schema: dict[str, Any], with_defaults: bool) -> dict[str, Any]:
    body = schema["schema"]
    if body["type"] != "model-fields" or body.get("computed_fields"):
        raise TypeError(f"{schema['cls'].__name__} has validators or computed fields: not for plain data")
    fields = {}
    for name, field in body["fields"].items():
        if not _KNOWN.issuperset(field):
            raise TypeError(
                f"{schema['cls'].__name__}.{name} has an alias or is excluded: not for plain data"
            )
        inner = field["schema"]
        is_required = inner["type"] != "default"
        if not is_required and not with_defaults:
            inner = inner["schema"]
        part = _on_data(inner, with_defaults)
        fields[name] = {"type": "typed-dict-field", "schema": part, "required": is_required}
    extra = schema["config"].get("extra_fields_behavior", "ignore")
    as_dict = {"type": "typed-dict", "fields": fields, "extra_behavior": extra}
    return as_dict | {key: schema[key] for key in ("ref", "config") if key in schema}


def _model_made_by(schema: dict[str, Any]) -> type[BaseModel] | None:
    factory = schema.get("default_factory")
    return factory if isinstance(factory, type) and issubclass(factory, BaseModel) else None
