"""FastAPI: what a route knows about its parameters, its body and its response.

Undocumented: `APIRoute.dependant`, `APIRoute.response_field`, `APIRoute._embed_body_fields`,
`ModelField._type_adapter`, `DefaultPlaceholder`. With them a simple route is called without its application,
at a fraction of the cost. If the probe fails, no route is direct: the application handles every request.
"""

import inspect
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.params import Depends as DependsParameter
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request

from nemo_gym.undocumented.probe import Probe

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RouteParts:
    """What a direct call of a route needs."""

    function: Callable[..., Any]
    body_field: Any | None
    response_field: Any | None
    request_parameter: str | None
    response_parameter: str | None


def is_simple(route: APIRoute) -> bool:
    """Whether the route takes at most a body model, a request and a response, and returns data."""
    from fastapi.datastructures import DefaultPlaceholder

    needs = route.dependant
    function = needs.call
    return (
        type(route) is APIRoute
        and "{" not in route.path
        and not needs.path_params
        and not needs.query_params
        and not needs.header_params
        and not needs.cookie_params
        and not needs.dependencies
        and len(needs.body_params) <= 1
        and not any(isinstance(field.field_info, Form) for field in needs.body_params)
        and not getattr(route, "_embed_body_fields", True)
        and needs.http_connection_param_name is None
        and needs.background_tasks_param_name is None
        and needs.security_scopes_param_name is None
        and needs.websocket_param_name is None
        and isinstance(route.response_class, DefaultPlaceholder)
        and inspect.isroutine(function)
        and not inspect.isgeneratorfunction(inspect.unwrap(function))
        and not inspect.isasyncgenfunction(inspect.unwrap(function))
        and (route.status_code is None or may_have_body(route.status_code))
    )


def may_have_body(status: int) -> bool:
    """Whether FastAPI sends a body with this status."""
    return status >= 200 and status not in (204, 205, 304)


def parts_of(route: APIRoute) -> RouteParts:
    """The parts of a simple route, with all schemas built."""
    needs = route.dependant
    assert needs.call is not None
    parts = RouteParts(
        function=needs.call,
        body_field=needs.body_params[0] if needs.body_params else None,
        response_field=route.response_field,
        request_parameter=needs.request_param_name,
        response_parameter=needs.response_param_name,
    )
    # Models with `defer_build` are built now: FastAPI silences pydantic's warning only at set-up.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for field in filter(None, (parts.body_field, parts.response_field)):
            field._type_adapter.rebuild(raise_errors=False)
    return parts


def build_schemas(app: FastAPI) -> None:
    """Build all deferred schemas by documented means, without pydantic's warning at their first use."""
    from fastapi.openapi.utils import get_openapi

    deferred = [route for route in app.routes if isinstance(route, APIRoute) and _may_be_deferred(route)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            get_openapi(title="", version="", routes=deferred)
        except Exception as error:  # the boundary to an environment's models: some have no JSON schema
            logger.debug("some schemas are built at their first use: %r", error)


def _may_be_deferred(route: APIRoute) -> bool:
    """Whether a schema of this route may be unbuilt; FastAPI builds all others when the route is added."""
    try:
        parameters = inspect.signature(route.endpoint, eval_str=True).parameters.values()
    except Exception:  # the boundary to an environment's annotations: some do not resolve here
        return True
    types = [getattr(given.annotation, "__origin__", given.annotation) for given in parameters]
    markers = [marker for given in parameters for marker in _markers(given)]
    return (
        bool(route.dependencies)
        or any(isinstance(marker, DependsParameter) for marker in markers)
        or any(_is_deferred(kind) for kind in (*types, route.response_model))
    )


def _markers(parameter: inspect.Parameter) -> list[object]:
    """Where FastAPI looks for `Depends`: the default value and the metadata of the annotation."""
    return [parameter.default, *getattr(parameter.annotation, "__metadata__", ())]


def _is_deferred(kind: object) -> bool:
    return bool(getattr(kind, "model_config", {}).get("defer_build"))


def annotation_of(field: Any) -> Any:
    """The type that a field validates to."""
    return field.field_info.annotation


def validated(field: Any, value: Any) -> Any:
    """What `field.validate` returns, without the layers between it and pydantic's core."""
    return field._type_adapter.validator.validate_python(value, from_attributes=True)


def to_json(field: Any, value: Any, options: dict[str, Any]) -> bytes:
    """A validated value as the JSON that FastAPI would send."""
    encoded: bytes = field._type_adapter.serializer.to_json(value, **options)
    return encoded


def to_data(field: Any, value: Any, options: dict[str, Any]) -> Any:
    """The same as plain data."""
    return field._type_adapter.serializer.to_python(value, mode="json", **options)


class _Body(BaseModel):
    number: int = 1


async def _simple(body: _Body, request: Request) -> _Body:
    return body


async def _embedding(one: _Body, other: _Body) -> None: ...


async def _dependent(number: int, body: Annotated[_Body, Depends(_simple)]) -> None: ...


def _check() -> bool:
    simple = APIRoute("/", _simple, response_model=_Body, methods=["POST"])
    others = [APIRoute("/", function, response_model=None) for function in (_embedding, _dependent)]
    parts = parts_of(simple)
    body: Any = parts.body_field
    value = validated(body, {"number": "2"})
    return (
        is_simple(simple)
        and not any(is_simple(route) for route in others)
        and parts.function is _simple
        and body.name == "body"
        and annotation_of(body) is _Body
        and (parts.request_parameter, parts.response_parameter) == ("request", None)
        and value == _Body(number=2)
        and to_json(parts.response_field, value, {"by_alias": True}) == b'{"number":2}'
        and to_data(parts.response_field, value, {"by_alias": True}) == {"number": 2}
    )


probe = Probe("fastapi", _check)
