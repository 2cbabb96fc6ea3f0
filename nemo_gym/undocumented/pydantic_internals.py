"""pydantic: the contents of a model's core schema.

pydantic documents how to build a core schema, not what is in one. Here the schema of a model is read and
rewritten so that it validates to dicts, at half the cost of building the models and dumping them. If the
probe fails, data is validated by the model, written as JSON and read again: the same result.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, Field, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import SchemaValidator, from_json

from nemo_gym.undocumented.probe import Probe

Replacements = Mapping[Callable[..., Any], Callable[..., Any]]
"""Validator functions, and those that take their place where the result is data instead of a model."""

_NOT_SCHEMAS = frozenset(("metadata", "serialization", "default", "default_factory"))
_KEYED_BY_NAME = ("fields", "choices")
"""Parts of a schema that map the user's names to schemas."""
_PLAIN_FIELD = {"type", "schema", "metadata"}
"""The keys of a field that has no alias and is not excluded."""


class DataValidator(Protocol):
    """Validates plain data to plain data."""

    def validate_python(self, value: Any, /) -> Any: ...


def dict_validator(
    model: type[BaseModel], *, with_defaults: bool, replacements: Replacements
) -> DataValidator:
    """A validator that returns the fields set on the model, or all of its fields, as data."""
    if not probe.passed:
        return _ByModel(model, with_defaults)
    return _by_schema(model, with_defaults, replacements)


def _by_schema(model: type[BaseModel], with_defaults: bool, replacements: Replacements) -> DataValidator:
    model.model_rebuild()  # a deferred build happens now
    return SchemaValidator(_Rewriter(with_defaults, replacements).rewritten(model.__pydantic_core_schema__))


class _ByModel:
    def __init__(self, model: type[BaseModel], with_defaults: bool) -> None:
        self._model = model
        self._only_set = not with_defaults

    def validate_python(self, value: Any, /) -> Any:
        validated = self._model.model_validate(value)
        return from_json(validated.model_dump_json(exclude_unset=self._only_set), cache_strings="keys")


class _Rewriter:
    """Rewrites a schema so that every model in it becomes a dict of the same fields."""

    def __init__(self, with_defaults: bool, replacements: Replacements) -> None:
        self._with_defaults = with_defaults
        self._replacements = replacements

    def rewritten(self, schema: Any) -> Any:
        if isinstance(schema, list | tuple):
            return type(schema)(self.rewritten(part) for part in schema)
        if not isinstance(schema, dict):
            return self._replacements.get(schema, schema) if callable(schema) else schema
        kind = schema.get("type")
        if kind == "model":
            return self._as_dict(schema)
        if kind == "default" and (model := _model_made_by(schema)) is not None:
            schema = {**schema, "default_factory": lambda: model().model_dump(mode="json")}
        return {key: self._part(key, part) for key, part in schema.items()}

    def _part(self, key: str, part: Any) -> Any:
        if key in _NOT_SCHEMAS:
            return part
        if key in _KEYED_BY_NAME and isinstance(part, dict):
            return {name: self.rewritten(inner) for name, inner in part.items()}
        return self.rewritten(part)

    def _as_dict(self, schema: dict[str, Any]) -> dict[str, Any]:
        body, name = schema["schema"], schema["cls"].__name__
        if body["type"] != "model-fields" or body.get("computed_fields"):
            raise TypeError(f"{name} has validators or computed fields; it cannot be validated to plain data")
        fields = {key: self._field(f"{name}.{key}", field) for key, field in body["fields"].items()}
        extra = schema["config"].get("extra_fields_behavior", "ignore")
        as_dict = {"type": "typed-dict", "fields": fields, "extra_behavior": extra}
        return as_dict | {key: schema[key] for key in ("ref", "config") if key in schema}

    def _field(self, name: str, field: dict[str, Any]) -> dict[str, Any]:
        if not _PLAIN_FIELD.issuperset(field):
            raise TypeError(f"{name} has an alias or is excluded; it cannot be validated to plain data")
        inner = field["schema"]
        is_required = inner["type"] != "default"
        if not is_required and not self._with_defaults:
            inner = inner["schema"]
        return {"type": "typed-dict-field", "schema": self.rewritten(inner), "required": is_required}


def _model_made_by(schema: dict[str, Any]) -> type[BaseModel] | None:
    factory = schema.get("default_factory")
    return factory if isinstance(factory, type) and issubclass(factory, BaseModel) else None


def _doubled(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return validate(value * 2)


def _check() -> bool:
    class Part(BaseModel, extra="allow"):
        text: str = "default"
        size: int | None = None

    class Whole(BaseModel):
        first: Part
        parts: list[Part]
        number: Annotated[int, WrapValidator(_doubled)]
        made: Part = Field(default_factory=Part)
        by_name: dict[str, Part] = {}

    data = {
        "first": {"size": "3", "extra": [1.5]},
        "parts": [{}, {"size": 4}],
        "number": 2,
        "by_name": {"a": {"text": "b"}},
    }
    return all(
        _by_schema(Whole, with_defaults, {}).validate_python(data)
        == _ByModel(Whole, with_defaults).validate_python(data)
        for with_defaults in (False, True)
    )


probe = Probe("pydantic", _check)
