"""Routes of every shape, to compare direct calls with calls through the application.

A route whose name begins with `plain_` can be called directly; all others need the ASGI application.
"""

import functools
import math
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import BackgroundTasks, Body, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    StreamingResponse,
)
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator
from starlette.background import BackgroundTask

from tests.gym.servers.serving import new_app


class Item(BaseModel):
    name: str
    price: float = 1.5
    note: str | None = None


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    long_name: str = Field(alias="longName")


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


class Priced(BaseModel):
    name: str

    @computed_field
    def length(self) -> int:
        return len(self.name)


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _lower(cls, name: str) -> str:
        if name == "trap":
            raise KeyError("a bug in the validator")
        if not name.islower():
            raise ValueError("must be lower case")
        return name


class OddError(Exception):
    pass


class OddSyncError(Exception):
    pass


class HandlerFailsError(Exception):
    pass


SHARED = JSONResponse({"shared": True}, headers={"x-shared": "1"})


class Tool:
    async def __call__(self, body: Item) -> Item:
        return body


class SyncTool:
    def __call__(self, body: Item) -> Item:
        return body


def asynchronous(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def forwarding(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def plain_item(body: Item) -> Item:
    return body


def add_calling_conventions(app: FastAPI) -> None:
    """Coroutines, plain functions and wrapped ones."""

    app.post("/plain_item")(plain_item)

    @app.post("/plain_sync")
    def plain_sync(body: Item) -> dict[str, Any]:
        return {"off_the_loop": threading.current_thread() is not threading.main_thread(), "name": body.name}

    @app.post("/plain_async_wrapper")
    @asynchronous
    def plain_async_wrapper(body: Item) -> Item:
        return body

    @app.post("/plain_sync_wrapper")
    @forwarding
    async def plain_sync_wrapper(body: Item) -> Item:
        return body


def add_bodies(app: FastAPI) -> None:
    """Bodies of every type, and none."""

    @app.post("/plain_no_annotation")
    async def plain_no_annotation(body: Item):
        return {"it": body, "set": {1}, "none": None}

    @app.post("/plain_dict")
    async def plain_dict(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @app.post("/plain_any")
    async def plain_any(body: Any = Body()) -> Any:
        return body

    @app.post("/plain_optional")
    async def plain_optional(body: Item | None = None) -> dict[str, bool]:
        return {"given": body is not None}

    @app.post("/plain_list")
    async def plain_list(body: list[Item]) -> list[Item]:
        return body

    @app.post("/plain_no_body")
    async def plain_no_body() -> str:
        return "nobody"

    @app.get("/plain_get")
    async def plain_get() -> list[int]:
        return [1, 2]


def add_requests(app: FastAPI) -> None:
    """Routes that read the request itself."""

    @app.post("/plain_request")
    async def plain_request(request: Request, body: Item) -> dict[str, Any]:
        again = await request.json()
        return {
            "same": again["name"] == body.name,
            "path": request.url.path,
            "method": request.method,
            "header": request.headers.get("x-mine"),
            "cookie": request.cookies.get("mine"),
            "app": request.app is app,
        }

    @app.post("/plain_raw_request")
    async def plain_raw_request(request: Request) -> dict[str, Any]:
        return {"body": (await request.body()).decode("latin-1"), "state": hasattr(request.state, "x")}


def add_response_models(app: FastAPI) -> None:
    """Response models, and options that leave fields out."""

    @app.post("/plain_filtered", response_model=Item)
    async def plain_filtered(body: Loose) -> Any:
        return body

    @app.post("/plain_filtered_dict", response_model=Item)
    async def plain_filtered_dict(body: dict[str, Any]) -> Any:
        return body

    @app.post("/plain_exclude_none", response_model=Item, response_model_exclude_none=True)
    async def plain_exclude_none(body: Item) -> Any:
        return body

    @app.post("/plain_exclude_unset", response_model=Item, response_model_exclude_unset=True)
    async def plain_exclude_unset(body: Item) -> Any:
        return body

    @app.post("/plain_exclude_defaults", response_model=Item, response_model_exclude_defaults=True)
    async def plain_exclude_defaults(body: Item) -> Any:
        return body

    @app.post("/plain_include", response_model=Item, response_model_include={"name"})
    async def plain_include(body: Item) -> Any:
        return body

    @app.post("/plain_exclude", response_model=Item, response_model_exclude={"name"})
    async def plain_exclude(body: Item) -> Any:
        return body


def add_results(app: FastAPI) -> None:
    """Results whose form depends on their own model or on the route."""

    @app.post("/plain_alias")
    async def plain_alias(body: Item) -> Aliased:
        return Aliased(long_name=body.name)

    @app.post("/plain_by_name", response_model_by_alias=False)
    async def plain_by_name(body: Aliased) -> Aliased:
        return body

    @app.post("/plain_computed")
    async def plain_computed(body: Item) -> Priced:
        return Priced(name=body.name)

    @app.post("/plain_loose")
    async def plain_loose(body: Loose) -> Loose:
        return body

    @app.post("/plain_created", status_code=201)
    async def plain_created(body: Item) -> Item:
        return body

    @app.post("/plain_no_model", response_model=None)
    async def plain_no_model(body: Loose) -> Loose:
        return body

    @app.post("/plain_none")
    async def plain_none(body: Item) -> None:
        return None


def add_response_parameters(app: FastAPI) -> None:
    """Routes that change the response they are given."""

    @app.post("/plain_response_param")
    async def plain_response_param(body: Item, response: Response) -> Item:
        response.set_cookie("mine", "some thing")
        response.set_cookie("other", "1")
        response.headers["x-mine"] = "1"
        response.status_code = 202
        return body

    @app.post("/plain_response_param_unused")
    async def plain_response_param_unused(body: Item, response: Response) -> Item:
        return body

    @app.post("/plain_becomes_204")
    async def plain_becomes_204(body: Item, response: Response) -> Item | None:
        response.status_code = 204
        return None


def add_own_responses(app: FastAPI) -> None:
    """Routes that return a response object."""

    @app.post("/plain_json_response")
    async def plain_json_response(body: Item) -> JSONResponse:
        return JSONResponse({"own": body.name}, status_code=203, headers={"x-mine": "1"})

    @app.post("/plain_text_response")
    async def plain_text_response(body: Item) -> Response:
        return PlainTextResponse(body.name)

    @app.post("/plain_empty_response")
    async def plain_empty_response(body: Item) -> Response:
        return Response(status_code=204)

    @app.post("/plain_redirect")
    async def plain_redirect(body: Item) -> Response:
        return RedirectResponse("/elsewhere", status_code=303)

    @app.post("/plain_own_error_response")
    async def plain_own_error_response(body: Item) -> Response:
        return JSONResponse({"why": "not here"}, status_code=404)

    @app.post("/plain_shared_response")
    async def plain_shared_response(body: Item) -> Response:
        return SHARED

    @app.post("/plain_stream")
    async def plain_stream(body: Item) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            for letter in body.name:
                yield letter

        return StreamingResponse(parts(), media_type="text/x-letters")


def add_exceptions(app: FastAPI) -> None:
    """Routes that raise, and the handlers of what they raise."""

    @app.post("/plain_http_exception")
    async def plain_http_exception(body: Item) -> Item:
        raise HTTPException(418, {"why": body.name}, headers={"x-tea": "pot"})

    @app.post("/plain_http_exception_503")
    async def plain_http_exception_503(body: Item) -> Item:
        raise HTTPException(503, "closed")

    @app.post("/plain_odd")
    async def plain_odd(body: Item) -> Item:
        raise OddError(body.name)

    @app.post("/plain_odd_sync")
    def plain_odd_sync(body: Item) -> Item:
        raise OddSyncError(body.name)

    @app.post("/plain_handler_fails")
    async def plain_handler_fails(body: Item) -> Item:
        raise HandlerFailsError

    @app.post("/plain_bug")
    async def plain_bug(body: Item) -> Item:
        raise RuntimeError(f"bug with {body.name}")

    @app.exception_handler(OddError)
    async def odd(request: Request, error: OddError) -> Response:
        return JSONResponse({"odd": str(error), "path": request.url.path}, status_code=409)

    @app.exception_handler(OddSyncError)
    def odd_sync(request: Request, error: OddSyncError) -> Response:
        return PlainTextResponse(f"odd {error}", status_code=400, headers={"x-odd": "1"})

    @app.exception_handler(HandlerFailsError)
    async def handler_fails(request: Request, error: HandlerFailsError) -> Response:
        raise RuntimeError("the handler failed")


def add_invalid_results(app: FastAPI) -> None:
    """Results and bodies that a model or JSON does not allow."""

    @app.post("/plain_wrong_response", response_model=Item)
    async def plain_wrong_response(body: Item) -> Any:
        return {"price": "much"}

    @app.post("/plain_nan_model")
    async def plain_nan_model(body: Item) -> Item:
        return Item(name="x", price=math.nan)

    @app.post("/plain_nan_dict")
    async def plain_nan_dict(body: Item) -> dict[str, float]:
        return {"a": math.inf}

    @app.post("/plain_nan_no_model")
    async def plain_nan_no_model(body: Item):
        return {"a": math.nan}

    @app.post("/plain_picky")
    async def plain_picky(body: Picky) -> Picky:
        return body


def add_background_tasks(app: FastAPI, log: list[str]) -> None:
    """Routes with background tasks, which append to `log`."""

    @app.post("/plain_background")
    async def plain_background(body: Item) -> JSONResponse:
        return JSONResponse({}, background=BackgroundTask(log.append, "response"))

    @app.post("/plain_background_fails")
    async def plain_background_fails(body: Item) -> JSONResponse:
        def fail() -> None:
            raise RuntimeError("in the background")

        return JSONResponse({"done": 1}, background=BackgroundTask(fail))

    @app.post("/background")
    async def background(body: Item, tasks: BackgroundTasks) -> Item:
        tasks.add_task(log.append, "parameter")
        return body


def add_other_callables(app: FastAPI) -> None:
    """Objects that are not functions."""

    app.post("/callable")(Tool())
    app.post("/sync_callable")(SyncTool())
    app.post("/partial")(functools.partial(plain_item))


def add_other_parameters(app: FastAPI) -> None:
    """Parameters that only the application can resolve."""

    @app.post("/depends")
    async def depends(body: Item, extra: Annotated[str, Depends(lambda: "solved")]) -> dict[str, str]:
        return {"name": body.name, "extra": extra}

    @app.post("/route_depends", dependencies=[Depends(lambda: None)])
    async def route_depends(body: Item) -> Item:
        return body

    @app.post("/query")
    async def query(body: Item, limit: int = 3) -> int:
        return limit

    @app.post("/header")
    async def header(x_mine: Annotated[str, Header()] = "none") -> str:
        return x_mine

    @app.post("/path/{number}")
    async def path(number: int, body: Item) -> int:
        return number

    @app.post("/two_bodies")
    async def two_bodies(first: Item, second: Item) -> str:
        return first.name + second.name

    @app.post("/embedded")
    async def embedded(body: Item = Body(embed=True)) -> Item:
        return body


def add_other_responses(app: FastAPI) -> None:
    """Responses that only the application can build."""

    @app.post("/html", response_class=HTMLResponse)
    async def html(body: Item) -> str:
        return f"<p>{body.name}</p>"

    @app.post("/no_content", status_code=204)
    async def no_content(body: Item) -> None:
        return None


def build(done: list[str] | None = None) -> FastAPI:
    """The application with all routes; background tasks append to `done`."""
    app = new_app()
    add_calling_conventions(app)
    add_bodies(app)
    add_requests(app)
    add_response_models(app)
    add_results(app)
    add_response_parameters(app)
    add_own_responses(app)
    add_exceptions(app)
    add_invalid_results(app)
    add_background_tasks(app, done if done is not None else [])
    add_other_callables(app)
    add_other_parameters(app)
    add_other_responses(app)
    return app
