"""The base of all wire models: they keep unknown fields, and a function picks the member of a union.

Validation of a union never tries its members in turn: a `pick` function names the member from the value, so
validation takes one pass and a bad value gives one error. Serialisation follows the class of an object, not
the annotation of its field, so fields of a subclass are never dropped.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from nemo_gym.types import TOKEN_FIELDS


class WireModel(BaseModel):
    """An object of the API. Undeclared fields are kept and can be read as attributes."""

    model_config = ConfigDict(extra="allow")

    _rare: ClassVar[frozenset[str]] = frozenset()
    """Fields of the API that are not declared because few objects have them. A missing one reads as None and
    is not serialised."""

    if not TYPE_CHECKING:  # otherwise type checkers would accept any misspelt attribute

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name in type(self)._rare:
                    return None
                raise


class WireObject(WireModel):
    """An object that is passed on without being interpreted: it declares no fields."""


def _are_finite(value: Any) -> bool:
    """Whether it is a list of finite floats, possibly with ints among them. With anything else in it, the sum
    is not a float or not finite. One sum is faster than pydantic, which checks each of 64K numbers."""
    if type(value) is list:
        with suppress(TypeError, OverflowError):
            total = sum(value)
            return type(total) is float and math.isfinite(total)
    return False


def _are_whole(value: Any) -> bool:
    if type(value) is list:
        with suppress(TypeError):
            return type(sum(value)) is int
    return False


def null_is_nan(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """JSON has no NaN, so each NaN arrives as null. Such a sample cannot be trained on, but it is valid."""
    if _are_finite(value):
        return value.copy()
    if isinstance(value, list) and None in value:
        value = [math.nan if item is None else item for item in value]
    return validate(value)


def nan_is_null(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """The same numbers as in JSON; a valid list is passed on without a copy."""
    if _are_finite(value):
        return value
    return [item if math.isfinite(item) else None for item in null_is_nan(value, validate)]


def whole_numbers(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return value.copy() if _are_whole(value) else validate(value)


def same_whole_numbers(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """As `whole_numbers`, but a valid list is passed on without a copy."""
    return value if _are_whole(value) else validate(value)


class _SerializedAsIs:
    """Annotates a value that is serialised as it is, not as its type says: an int among floats stays an int,
    in JSON and in the data for a caller in this process."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return {**handler(source), "serialization": core_schema.simple_ser_schema("any")}


LogProbs = Annotated[list[float], WrapValidator(null_is_nan), _SerializedAsIs()]
TokenIds = Annotated[list[int], WrapValidator(whole_numbers)]


class TokenIDLogProbMixin(BaseModel):
    """The tokens of one generation as the engine sampled them, never tokenised from text."""

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs


class TokenIDLogProbTypedDictMixin(TypedDict):
    """`TokenIDLogProbMixin` for messages that are dicts."""

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs


def has_tokens(value: Mapping[str, Any]) -> bool:
    """Whether this message or item has token ids or log-probabilities of its generation."""
    # Called for every item. Most have none of the fields, and three membership tests are the fastest check.
    if "generation_token_ids" in value or "prompt_token_ids" in value or "generation_log_probs" in value:
        return any(value.get(field) is not None for field in TOKEN_FIELDS)
    return False


Pick = Callable[[Any], str | None]
"""Returns the name of the union member that a value belongs to; None if there is none."""


class Picked:
    """Annotates a union: `pick` names the member of a value, `members` maps names to types."""

    def __init__(self, pick: Pick, members: Mapping[str, Any], expected: str) -> None:
        """`expected` completes "Input should be ...", the error if `pick` returns None."""
        self._pick = pick
        self._members = members
        self._expected = expected

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema(
            {name: handler.generate_schema(member) for name, member in self._members.items()},
            self._pick,
            custom_error_type="wire_type",
            custom_error_message=f"Input should be {self._expected}",
            serialization=core_schema.simple_ser_schema("any"),
        )


def member_of_instance(value: object, names: Mapping[type, str]) -> str | None:
    """The member name of the class of `value`, or of its nearest base class that has one."""
    for cls in type(value).__mro__:
        name = names.get(cls)
        if name is not None:
            return name
    return None


def text_or_list(value: object) -> str | None:
    """The member for a value that may be a string or a list."""
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, (list, tuple)) else None  # faster than `list | tuple`


class _TextOr:
    """Annotates `str | X` where every object is an X, so that each member is tried at most once."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [core_schema.str_schema(strict=True), handler.generate_schema(self._other)],
            mode="left_to_right",
            custom_error_type="wire_type",
            custom_error_message="Input should be a string or an object",
            serialization=core_schema.simple_ser_schema("any"),
        )


class _Number:
    """Annotates `int | float`: an int stays an int; a bool or a string is not a number."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            # In this order the smart union accepts a float at once and raises no error for an int.
            [core_schema.float_schema(strict=True), core_schema.int_schema(strict=True)],
            custom_error_type="number",
            custom_error_message="Input should be a number",
            serialization=core_schema.simple_ser_schema("any"),  # writes NaN as null, in plain data too
        )


Number = Annotated[int | float, _Number()]
JsonObject = dict[str, Any]
TextOrObject = Annotated[str | WireObject, _TextOr(WireObject)]
TextOrDict = Annotated[str | JsonObject, _TextOr(JsonObject)]
