"""Routes that can be called without their ASGI application.

Nearly every route takes a body model, perhaps a `Request` or a `Response`, and returns data. Such a route is
compiled once: validate the body with FastAPI's field, call the function, validate the result with FastAPI's
response field. The application handles everything else (an invalid body, streaming), so those responses are
FastAPI's own. A route on plain data (`takes_data`) gets its body without a model. A caller in this
process gets its response as data too; it is written as JSON only if the caller reads the bytes.
"""

import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import ResponseValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.event_loop import end_forked_process
from nemo_gym.http import ClientResponse, Headers
from nemo_gym.openai_utils.wire_data import data_validator, is_on_data
from nemo_gym.undocumented import fastapi_internals, starlette_internals
from nemo_gym.undocumented.fastapi_internals import (
    RouteParts,
    annotation_of,
    is_simple,
    may_have_body,
    parts_of,
    to_data,
    to_json,
    validated,
)
from nemo_gym.undocumented.pydantic_internals import DataValidator
from nemo_gym.undocumented.starlette_internals import first_match


class NotDirectError(Exception):
    """This request needs the ASGI application."""


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """One route, compiled for direct calls."""

    function: Callable[..., Any]
    is_coroutine: bool
    body_field: Any | None
    request_parameter: str | None
    response_parameter: str | None
    response_field: Any | None
    dump_options: dict[str, Any]
    status: int
    body_data: DataValidator | None
    """Validates the body of a route on plain data."""
    response_data: DataValidator | None
    """Validates its response, for a caller in this process."""

    def arguments(self, body: bytes) -> dict[str, Any]:
        """The function's arguments from the body of a request."""
        field = self.body_field
        if field is None:
            return {}
        try:
            if self.body_data is not None:
                data = from_json(body, cache_strings="keys", allow_inf_nan=False)
                return {field.name: self.body_data.validate_python(data)}
            data = decode_json(body)
            value = validated(field, data)
        except Exception:  # not JSON or not valid: the application responds
            raise NotDirectError from None
        if data is None:
            raise NotDirectError
        return {field.name: value}

    def carrier(self, arguments: dict[str, Any]) -> Response:
        """The response object for headers and cookies, which is added to the arguments."""
        assert self.response_parameter is not None
        carrier = Response()
        carrier.status_code = 0  # the function may set a status other than the route's
        del carrier.headers["content-length"]
        arguments[self.response_parameter] = carrier
        return carrier

    def invoke(self, arguments: dict[str, Any]) -> Awaitable[Any]:
        """Call the function; its result is a response object or data to encode."""
        if self.is_coroutine:
            called: Awaitable[Any] = self.function(**arguments)
            return called
        return run_in_threadpool(self._called_in_thread, arguments)

    def _called_in_thread(self, arguments: dict[str, Any]) -> Any:
        owner = os.getpid()
        try:
            return self.function(**arguments)
        finally:
            end_forked_process(owner)

    def encode(self, value: Any, status: int) -> bytes:
        """The result of the function as JSON."""
        body = self._shaped(value)
        return body if may_have_body(status) else b""

    def _shaped(self, value: Any) -> bytes:
        if self.response_field is None:
            return _json_of(jsonable_encoder(value))
        return self.written(self.shape(value))

    def shape(self, value: Any) -> Any:
        """The result of the function, validated by the response model of the route."""
        try:
            return validated(self.response_field, value)
        except ValidationError as invalid:
            raise _response_error(invalid, value) from None

    def shape_data(self, value: dict[str, Any]) -> Any:
        """Like `shape`, as plain data, for a route on plain data."""
        assert self.response_data is not None
        try:
            return self.response_data.validate_python(value)
        except ValidationError as invalid:
            self.shape(value)  # raises the same error as over HTTP
            raise _response_error(invalid, value) from None

    def written(self, shaped: Any) -> bytes:
        """The result of `shape` as JSON."""
        try:
            return to_json(self.response_field, shaped, self.dump_options)
        except PydanticSerializationError:  # pydantic cannot write half a surrogate pair
            return encode_json(to_data(self.response_field, shaped, self.dump_options))


class ResponseData(NamedTuple):
    """The result of a route on plain data, and the output of `shape_data` for it."""

    route: DirectRoute
    value: dict[str, Any]
    data: Any


class DataResponse(ClientResponse):
    """A response to a caller in this process. Its body is written only if the caller reads the bytes.

    If a caller calls `json` twice, both results share token lists and the parts that no model declares.
    """

    __slots__ = ("_data", "_route", "_value")

    def __init__(self, result: ResponseData, headers: Headers, method: str, url: str) -> None:
        super().__init__(result.route.status, headers, b"", method=method, url=url)
        self._route, self._value, self._data = result

    async def json(self, **_: Any) -> Any:
        data, self._data = self._data, None  # the caller may change it
        return self._route.shape_data(self._value) if data is None else data

    @property
    def body(self) -> bytes:
        self._write()
        return super().body

    async def read(self) -> bytes:
        return self.body

    async def text(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        self._write()
        return await super().text(encoding, errors)

    @property
    def content(self) -> Any:
        self._write()
        return super().content

    def _write(self) -> None:
        if not self._body:
            self._body = self._route.written(self._route.shape(self._value))


def _json_of(data: Any) -> bytes:
    try:
        return bytes(JSONResponse(data).body)
    except UnicodeEncodeError:  # half a surrogate pair
        return encode_json(data)


def _response_error(invalid: ValidationError, value: Any) -> ResponseValidationError:
    found = [{**error, "loc": ("response", *error["loc"])} for error in invalid.errors(include_url=False)]
    return ResponseValidationError(errors=found, body=value)


def is_direct_supported() -> bool:
    """Whether the installed versions allow direct calls; if not, the application handles every request."""
    return fastapi_internals.probe.passed and starlette_internals.probe.passed


def compile_routes(app: FastAPI) -> dict[tuple[str, str], DirectRoute]:
    """Every (method, path) of the application that can be called directly."""
    if not is_direct_supported():
        return {}
    routes = {}
    for route in app.router.routes:
        if isinstance(route, APIRoute) and is_simple(route):
            for method in route.methods or ():
                if first_match(app, method, route.path) is route:
                    routes[method, route.path] = _compile(route)
    return routes


def _dump_options(route: APIRoute) -> dict[str, Any]:
    """The options with which the route serializes its result, without defaults."""
    options = {
        "include": route.response_model_include,
        "exclude": route.response_model_exclude,
        "exclude_unset": route.response_model_exclude_unset,
        "exclude_defaults": route.response_model_exclude_defaults,
        "exclude_none": route.response_model_exclude_none,
    }
    given = {name: value for name, value in options.items() if value not in (None, False)}
    return {**given, "by_alias": route.response_model_by_alias}


def _response_data(route: APIRoute, parts: RouteParts) -> DataValidator | None:
    is_plain = route.status_code in (None, 200) and _dump_options(route) == {"by_alias": True}
    return _data_validator(parts, parts.response_field, with_defaults=True) if is_plain else None


def _data_validator(parts: RouteParts, field: Any, *, with_defaults: bool) -> DataValidator | None:
    if field is None or not is_on_data(parts.function):
        return None
    return data_validator(annotation_of(field), with_defaults=with_defaults)


def _compile(route: APIRoute) -> DirectRoute:
    parts = parts_of(route)
    return DirectRoute(
        function=parts.function,
        # As in FastAPI: a decorator may turn a plain function into a coroutine function, or hide one.
        is_coroutine=inspect.iscoroutinefunction(parts.function)
        or inspect.iscoroutinefunction(inspect.unwrap(parts.function)),
        body_field=parts.body_field,
        request_parameter=parts.request_parameter,
        response_parameter=parts.response_parameter,
        response_field=parts.response_field,
        dump_options=_dump_options(route),
        status=route.status_code or 200,
        body_data=_data_validator(parts, parts.body_field, with_defaults=False),
        response_data=_response_data(route, parts),
    )
