"""Hypothesis strategies for all values of the types of the `openai` package.

A value is JSON data: a pydantic model or a TypedDict becomes a dict of its wire names, with any subset of its
optional fields.
"""

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typing_extensions
from hypothesis import strategies as st
from openai._types import SequenceNotStr
from pydantic import BaseModel

Strategy = st.SearchStrategy[Any]

_TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=6)
_INT = st.integers(-(2**53), 2**53)
_FLOAT = st.one_of(st.floats(allow_nan=False, allow_infinity=False), _INT)
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), _INT, _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_TEXT, inner, max_size=2)),
    max_leaves=3,
)
_PLAIN: dict[object, Strategy] = {
    type(None): st.none(),
    str: _TEXT,
    int: _INT,
    float: _FLOAT,
    bool: st.booleans(),
    object: _JSON,
    Any: _JSON,
}
_WRAPPERS = (Annotated, typing.Required, typing.NotRequired)
_LISTS = (list, Iterable, Sequence, SequenceNotStr)
_DICTS = (dict, Mapping)


@cache
def values_of(annotation: Any) -> Strategy:
    """All values of a type of the SDK; types may be recursive."""
    return _PLAIN[annotation] if annotation in _PLAIN else st.deferred(lambda: _build(annotation))


def members_of(annotation: Any) -> list[Any]:
    """The member types of a union, or of a list of a union."""
    return [member for member in _members(annotation) if member is not type(None)]


def same_json(one: object, other: object) -> bool:
    """Whether both are the same JSON; unlike `==`, 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """The paths at which `after` lacks or changes a value of `before`; additions do not count."""
    if isinstance(before, dict) and isinstance(after, dict):
        missing = [f"{path}.{key}" for key in before if key not in after]
        both = [key for key in before if key in after]
        return missing + [where for key in both for where in lost(before[key], after[key], f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            where
            for index, pair in enumerate(zip(before, after, strict=True))
            for where in lost(*pair, f"{path}[{index}]")
        ]
    return [] if same_json(before, after) else [path]


def _members(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif origin is list:
        yield from _members(get_args(annotation)[0])
    else:
        yield annotation


def _build(annotation: Any) -> Strategy:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in _WRAPPERS:
        return values_of(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(member) for member in arguments])
    if typing_extensions.is_typeddict(annotation):
        return _dicts_of_typed_dict(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _dicts_of_model(annotation)
    if origin in _LISTS:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin in _DICTS:
        return st.dictionaries(_TEXT, values_of(arguments[1]), max_size=2)
    raise TypeError(f"no strategy for {annotation!r}")


def _dicts_of_typed_dict(annotation: Any) -> Strategy:
    # The SDK's annotations are strings, so __required_keys__ does not reflect the Required in them.
    hints = typing_extensions.get_type_hints(annotation, include_extras=True)
    marks: dict[str, Any] = {name: get_origin(hint) for name, hint in hints.items()}
    required = {
        name
        for name, mark in marks.items()
        if mark is typing.Required or (annotation.__total__ and mark is not typing.NotRequired)
    }
    return _dicts({name: values_of(hint) for name, hint in hints.items()}, required)


def _dicts_of_model(model: type[BaseModel]) -> Strategy:
    model.model_rebuild()
    names = {name: field.alias or name for name, field in model.model_fields.items()}
    annotations: dict[str, Any] = {name: field.annotation for name, field in model.model_fields.items()}
    fields = {names[name]: values_of(annotation) for name, annotation in annotations.items()}
    return _dicts(fields, {names[name] for name, field in model.model_fields.items() if field.is_required()})


def _dicts(fields: dict[str, Strategy], required: set[str]) -> Strategy:
    return st.fixed_dictionaries(
        {name: field for name, field in fields.items() if name in required},
        optional={name: field for name, field in fields.items() if name not in required},
    )
