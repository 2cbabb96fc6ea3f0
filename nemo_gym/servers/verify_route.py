"""The route `/verify` of an environment whose `verify` takes the task and the model's response separately.

FastAPI would look for such parameters in the query of the URL. Every other signature is left to FastAPI.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_origin

from fastapi import BackgroundTasks
from fastapi.exceptions import RequestValidationError
from fastapi.security import SecurityScopes
from pydantic import TypeAdapter, ValidationError
from starlette.requests import HTTPConnection
from starlette.responses import Response

from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.types import RESPONSE_KEY_NAME

Body = dict[str, Any]

_OF_FASTAPI = (HTTPConnection, Response, BackgroundTasks, SecurityScopes)


def verify_route(verify: Callable[..., Any]) -> Callable[..., Any]:
    """`verify` as FastAPI can serve it: the same function, or one whose only parameter is the body.

    `verify(task, response)` gets the row and the model's response, `verify(body)` both in one dictionary.
    """
    try:
        signature = inspect.signature(verify, eval_str=True)
    except Exception:  # the boundary to an environment's annotations: FastAPI reports what is wrong with them
        return verify
    parameters = list(signature.parameters.values())
    if not all(map(_is_plain, parameters)):
        return verify
    if _is_split(parameters):
        arguments: Callable[[Body], Sequence[Any]] = _Split.of(parameters).arguments
    elif len(parameters) == 1 and _is_bare(parameters[0]):
        arguments = _whole
    else:
        return verify
    route = _on_body(verify, arguments)
    if signature.return_annotation is not inspect.Signature.empty:
        route.__annotations__["return"] = signature.return_annotation
    return route


def _on_body(verify: Callable[..., Any], arguments: Callable[[Body], Sequence[Any]]) -> Callable[..., Any]:
    async def verify_body(body: Body) -> Any:
        return await verify(*arguments(body))

    def verify_body_blocking(body: Body) -> Any:
        return verify(*arguments(body))

    is_coroutine = any(map(inspect.iscoroutinefunction, (verify, inspect.unwrap(verify))))
    return verify_body if is_coroutine else verify_body_blocking


def _is_plain(parameter: inspect.Parameter) -> bool:
    """Whether a value for it can only come from the body."""
    kind = parameter.annotation
    return (
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        and get_origin(kind) is not Annotated
        and not (isinstance(kind, type) and issubclass(kind, _OF_FASTAPI))
    )


def _is_bare(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (parameter.empty, Any)


def _is_split(parameters: Sequence[inspect.Parameter]) -> bool:
    return len(parameters) == 2 and (
        parameters[1].name.endswith(RESPONSE_KEY_NAME) or all(map(_is_bare, parameters))
    )


def _whole(body: Body) -> tuple[Body]:
    return (body,)


@dataclass(frozen=True)
class _Split:
    task: TypeAdapter[Any]
    response: TypeAdapter[Any]
    task_has_response: bool
    """Whether the type of the task is one of a whole request to `/verify`."""

    @classmethod
    def of(cls, parameters: Sequence[inspect.Parameter]) -> "_Split":
        task, response = parameters
        row = Body if _is_bare(task) else task.annotation
        declared = getattr(row, "model_fields", {})
        return cls(
            TypeAdapter(row),
            TypeAdapter(NeMoGymResponse if _is_bare(response) else response.annotation),
            RESPONSE_KEY_NAME in declared,
        )

    def arguments(self, body: Body) -> tuple[Any, Any]:
        row = body
        if not self.task_has_response:
            row = {name: value for name, value in body.items() if name != RESPONSE_KEY_NAME}
        response = body.get(RESPONSE_KEY_NAME)
        return _valid(self.task, row, ()), _valid(self.response, response, (RESPONSE_KEY_NAME,))


def _valid(adapter: TypeAdapter[Any], value: Any, place: tuple[str, ...]) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        found = [{**one, "loc": ("body", *place, *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(found, body=value) from error
