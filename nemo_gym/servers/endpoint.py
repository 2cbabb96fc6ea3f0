"""Endpoints that can be called without their ASGI application.

Nearly every route takes a body model, perhaps a `Request` or a `Response`, and gives back data. Such a
route is compiled once: validate the body with FastAPI's own field, call, shape the result with FastAPI's
own response field. Whatever is out of the ordinary (a body that does not validate, streaming) is left to
the application, so its answer is FastAPI's own.
"""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.datastructures import DefaultPlaceholder
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import ResponseValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute
from fastapi.utils import is_body_allowed_for_status_code
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from nemo_gym.codec import decode_json


class NotDirectError(Exception):
    """This request needs the ASGI application."""


class Result(NamedTuple):
    """What an endpoint gave back: a response object, or data already shaped and encoded."""

    status: int
    body: bytes | None
    """None: the response object is the answer."""
    response: Response | None = None
    """The endpoint's own response, or the one it was handed to put headers and cookies on."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route, ready to be called."""

    function: Callable[..., Any]
    is_coroutine: bool
    body_field: Any | None
    request_parameter: str | None
    response_parameter: str | None
    response_field: Any | None
    dump_options: dict[str, Any]
    status: int

    def arguments(self, body: bytes) -> dict[str, Any]:
        """The endpoint's arguments from the body of a request."""
        field = self.body_field
        if field is None:
            return {}
        try:
            data = decode_json(body)
            value, errors = field.validate(data, {}, loc=("body",))
        except Exception:  # no JSON, or a validator that fails: the application says so in its way
            raise NotDirectError from None
        if errors or data is None:
            raise NotDirectError
        return {field.name: value}

    async def call(self, arguments: dict[str, Any]) -> Result:
        """Run the endpoint and shape what it gives back."""
        carrier = None
        if self.response_parameter is not None:
            carrier = Response()
            carrier.status_code = 0  # set by an endpoint that wants another status than its route's
            del carrier.headers["content-length"]
            arguments[self.response_parameter] = carrier
        if self.is_coroutine:
            value = await self.function(**arguments)
        else:
            value = await run_in_threadpool(self.function, **arguments)
        if isinstance(value, Response):
            return Result(value.status_code, None, value)
        status = (carrier.status_code if carrier is not None else 0) or self.status
        body = self._encode(value)
        if status != 200 and not is_body_allowed_for_status_code(status):
            body = b""
        return Result(status, body, carrier)

    def _encode(self, value: Any) -> bytes:
        field = self.response_field
        if field is None:
            return bytes(JSONResponse(jsonable_encoder(value)).body)
        shaped, errors = field.validate(value, {}, loc=("response",))
        if errors:
            raise ResponseValidationError(errors=errors, body=value)
        encoded: bytes = field.serialize_json(shaped, **self.dump_options)
        return encoded


def compile_endpoints(app: FastAPI) -> dict[tuple[str, str], Endpoint]:
    """Every (method, path) of the application that can be called directly."""
    endpoints = {}
    for route in app.router.routes:
        if isinstance(route, APIRoute) and _is_direct(route):
            for method in route.methods or ():
                if _route_of(app, method, route.path) is route:
                    endpoints[method, route.path] = _compile(route)
    return endpoints


def _is_direct(route: APIRoute) -> bool:
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
        and (route.status_code is None or route.status_code >= 200)
        and route.status_code not in (204, 205, 304)
    )


def _route_of(app: FastAPI, method: str, path: str) -> object:
    """The route that the application itself would pick."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    for route in app.router.routes:
        if route.matches(scope)[0] is Match.FULL:
            return route
    return None


def _finish(fields: list[Any]) -> None:
    """Build what models with `defer_build` put off: FastAPI hushes pydantic's warning only at set-up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for field in fields:
            field._type_adapter.rebuild(raise_errors=False)


def _compile(route: APIRoute) -> Endpoint:
    needs = route.dependant
    assert needs.call is not None
    _finish([*needs.body_params, *filter(None, [route.response_field])])
    return Endpoint(
        function=needs.call,
        # As FastAPI has it: a decorator may make a coroutine function of a plain one, or hide one.
        is_coroutine=inspect.iscoroutinefunction(needs.call)
        or inspect.iscoroutinefunction(inspect.unwrap(needs.call)),
        body_field=needs.body_params[0] if needs.body_params else None,
        request_parameter=needs.request_param_name,
        response_parameter=needs.response_param_name,
        response_field=route.response_field,
        dump_options={
            "include": route.response_model_include,
            "exclude": route.response_model_exclude,
            "by_alias": route.response_model_by_alias,
            "exclude_unset": route.response_model_exclude_unset,
            "exclude_defaults": route.response_model_exclude_defaults,
            "exclude_none": route.response_model_exclude_none,
        },
        status=route.status_code or 200,
    )
