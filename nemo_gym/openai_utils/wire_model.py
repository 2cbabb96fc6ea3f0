"""What all wire models share: unknown fields survive, and one look at a value picks its model.

A union of wire models never tries its members in turn. A `pick` function names the member from the value
itself, so validation costs one pass and a bad value gives one error. What is written out follows the class
that an object has, not the annotation it stands under, so the fields of a subclass are never dropped.
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
    """An object of the API. Fields that are not declared are kept and readable as attributes."""

    model_config = ConfigDict(extra="allow")

    _rare: ClassVar[frozenset[str]] = frozenset()
    """Fields of the API that are not declared because few objects have them: None where they are not there,
    and then not written out either."""

    if not TYPE_CHECKING:  # with it in sight, any misspelt attribute would pass

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name in type(self)._rare:
                    return None
                raise


class WireObject(WireModel):
    """An object that is carried, not interpreted: all its fields are undeclared ones."""


def _are_finite(value: Any) -> bool:
    """Whether it is a list of finite floats, perhaps with ints among them: a sum with anything else in it is
    no float, or not finite. Pydantic would look at each of 64K."""
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
    """JSON has no NaN: on the way here each became null. The sample is unfit to train on, not invalid."""
    if _are_finite(value):
        return value.copy()
    if isinstance(value, list) and None in value:
        value = [math.nan if one is None else one for one in value]
    return validate(value)


def nan_is_null(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """The same numbers as JSON has them; a list that is right is passed on."""
    if _are_finite(value):
        return value
    return [one if math.isfinite(one) else None for one in null_is_nan(value, validate)]


def whole_numbers(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return value.copy() if _are_whole(value) else validate(value)


def same_whole_numbers(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """`whole_numbers`; a list that is right is passed on."""
    return value if _are_whole(value) else validate(value)


class _AsGiven:
    """Annotates what is written as it is, not as its type would have it: an int among floats stays one, in
    JSON as in the data that a caller in this process gets."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return {**handler(source), "serialization": core_schema.simple_ser_schema("any")}


LogProbs = Annotated[list[float], WrapValidator(null_is_nan), _AsGiven()]
TokenIds = Annotated[list[int], WrapValidator(whole_numbers)]


class TokenIDLogProbMixin(BaseModel):
    """The tokens of one generation as the engine sampled them, never tokenised again from text."""

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs


class TokenIDLogProbTypedDictMixin(TypedDict):
    """`TokenIDLogProbMixin` for messages that are dicts."""

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs


def has_tokens(value: Mapping[str, Any]) -> bool:
    """Whether this message or item carries token ids or log-probabilities of its generation."""
    # Asked of every item: most carry none of the fields, and three membership tests are the fastest no.
    if "generation_token_ids" in value or "prompt_token_ids" in value or "generation_log_probs" in value:
        return any(value.get(field) is not None for field in TOKEN_FIELDS)
    return False


Pick = Callable[[Any], str | None]
"""Names the member of a union that a value belongs to; None: it belongs to none."""


class Picked:
    """Annotates a union whose member `pick` names, out of `members` (name → type)."""

    def __init__(self, pick: Pick, members: Mapping[str, Any], expected: str) -> None:
        """`expected` completes "Input should be ...", the error where `pick` answers None."""
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
    """The name under which the class of `value`, or the nearest class above it, is a member."""
    for cls in type(value).__mro__:
        name = names.get(cls)
        if name is not None:
            return name
    return None


def text_or_list(value: object) -> str | None:
    """Pick for what may be a plain text or a list."""
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list | tuple) else None


class _TextOr:
    """Annotates `str | X` where every object is an X, so that one try of each is all it takes."""

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
    """Annotates `int | float`: an int stays an int, and a bool or a text is no number."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            # In this order the smart union takes a float at its first try and meets no error on an int.
            [core_schema.float_schema(strict=True), core_schema.int_schema(strict=True)],
            custom_error_type="number",
            custom_error_message="Input should be a number",
            serialization=core_schema.simple_ser_schema("any"),  # for which NaN is null in plain data too
        )


Number = Annotated[int | float, _Number()]
JsonObject = dict[str, Any]
TextOrObject = Annotated[str | WireObject, _TextOr(WireObject)]
TextOrDict = Annotated[str | JsonObject, _TextOr(JsonObject)]
