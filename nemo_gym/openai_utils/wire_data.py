"""Requests and responses as plain data, validated as their wire models would, without building the models.

Invariant: for any value that JSON can express, `data_validator` returns what reading the JSON of the
validated model would return, including the order of keys. Token lists, and parts that no model interprets,
are passed on, not copied.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel

from nemo_gym.undocumented.pydantic_internals import DataValidator, dict_validator

from .wire_model import nan_is_null, null_is_nan, same_whole_numbers, whole_numbers

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "takes_data"
_REPLACEMENTS = {null_is_nan: nan_is_null, whole_numbers: same_whole_numbers}


class OddJson(dict[str, Any]):
    """An object with NaN or half a surrogate pair in it: its JSON differs from it, or cannot be written."""


def takes_data(function: Function) -> Function:
    """Mark the function of a route that takes its body as plain data too, and returns plain data.

    Request and response are wire models. A caller in this process gets the validated response itself, which
    shares token lists and parts that no model interprets: the function must not keep any of it.
    """
    setattr(function, _MARK, function)
    return function


def is_on_data(function: object) -> bool:
    """Whether `takes_data` marks this function itself, not one that it wraps."""
    function = getattr(function, "__func__", function)
    return function is getattr(function, _MARK, None)


@cache
def data_validator(model: type[BaseModel], *, with_defaults: bool) -> DataValidator:
    """A validator that returns the fields set on the model, or all of its fields, as data."""
    return dict_validator(model, with_defaults=with_defaults, replacements=_REPLACEMENTS)
