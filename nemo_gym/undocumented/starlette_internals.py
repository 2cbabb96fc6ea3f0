"""Starlette: parsing of cookies, the list of middleware, the lifespan context and the matching of routes.

Undocumented APIs, and the documented ones that replace them if the probe fails:

- `starlette.requests.cookie_parser`: `Request.cookies`.
- `Starlette.user_middleware`: no replacement; `middleware_count` is then None and no route is direct.
- `Router.lifespan_context`: the lifespan messages of ASGI.
- `BaseRoute.matches`, `Response.raw_headers`: used by direct routes only.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from nemo_gym.undocumented.probe import Probe

_ASGI = {"version": "3.0", "spec_version": "2.0"}


def parse_cookies(header: str) -> dict[str, str]:
    """The cookies of a Cookie header."""
    return _cookie_parser()(header)


@cache
def _cookie_parser() -> Callable[[str], dict[str, str]]:
    if not probe.passed:
        return _cookies_of_request
    from starlette.requests import cookie_parser

    return cookie_parser


def middleware_count(app: Starlette) -> int | None:
    """How many middleware were added to the application; None if unknown."""
    return len(app.user_middleware) if probe.passed else None


def first_match(app: Starlette, method: str, path: str) -> object:
    """The route that the application would choose for a request. Call it only if the probe passed."""
    from starlette.routing import Match

    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    return next((route for route in app.router.routes if route.matches(scope)[0] is Match.FULL), None)


def is_plain(response: Response) -> bool:
    """Whether the response only sends its headers and its body. Call it only if the probe passed."""
    return type(response).__call__ is Response.__call__ and response.background is None


def headers_of(response: Response) -> list[tuple[str, str]]:
    """All headers but the content length. Call it only if the probe passed."""
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in response.raw_headers
        if name != b"content-length"
    ]


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    """The application between its start-up and its shutdown; yields its lifespan state."""
    if probe.passed:
        async with app.router.lifespan_context(app) as state:
            yield state or {}
    else:
        async with _lifespan_by_messages(app) as state:
            yield state


def _cookies_of_request(header: str) -> dict[str, str]:
    return Request({"type": "http", "headers": [(b"cookie", header.encode("latin-1"))]}).cookies


@asynccontextmanager
async def _lifespan_by_messages(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    requests: asyncio.Queue[Message] = asyncio.Queue()
    responses: asyncio.Queue[Message] = asyncio.Queue()
    state: dict[str, Any] = {}
    scope = {"type": "lifespan", "asgi": _ASGI, "state": state}
    running = asyncio.ensure_future(app(scope, requests.get, responses.put))
    try:
        await _exchange("lifespan.startup", running, requests, responses)
        yield state
        await _exchange("lifespan.shutdown", running, requests, responses)
        await running
    finally:
        running.cancel()


async def _exchange(
    kind: str,
    running: "asyncio.Future[None]",
    requests: "asyncio.Queue[Message]",
    responses: "asyncio.Queue[Message]",
) -> None:
    """Send one message and wait for the response. Raises what the application raises."""
    requests.put_nowait({"type": kind})
    response = asyncio.ensure_future(responses.get())
    waiting: set[asyncio.Future[Any]] = {running, response}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not response.done() or response.result()["type"] != f"{kind}.complete":
        response.cancel()
        await running


def _check() -> bool:
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import cookie_parser

    async def endpoint(request: Request) -> Response:
        return Response()

    header = 'a=1; b="x y"; c; d=%20'
    app = Starlette(routes=[Route("/a", endpoint, methods=["POST"]), Route("/b", endpoint)])
    app.add_middleware(GZipMiddleware)
    response = Response(b"x", headers={"set-cookie": "a=1"})
    return (
        cookie_parser(header) == _cookies_of_request(header)
        and len(app.user_middleware) == 1
        and first_match(app, "POST", "/a") is app.routes[0]
        and first_match(app, "POST", "/b") is None
        and hasattr(app.router.lifespan_context(app), "__aenter__")
        and is_plain(response)
        and headers_of(response) == [("set-cookie", "a=1")]
    )


probe = Probe("starlette", _check)
