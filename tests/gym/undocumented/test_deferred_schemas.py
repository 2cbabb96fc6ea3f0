"""Without direct routes, schemas whose build is deferred are built before the first request."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import Body, Depends, FastAPI
from pydantic import BaseModel, ConfigDict

from nemo_gym.client import ServerClient
from nemo_gym.undocumented.fastapi_internals import build_schemas
from tests.support.asgi_transport import AsgiTransport


def endpoint_with_a_deferred_model(position: str) -> Callable[..., Any]:
    """A new model each time: a model is built once per process."""

    class Deferred(BaseModel):
        model_config = ConfigDict(defer_build=True)

        number: int

    async def body_only(body: Deferred) -> Any:
        return {"number": body.number}

    async def optional(body: Deferred | None = None) -> Any:
        return {"number": body.number if body else 0}

    async def annotated(body: Annotated[Deferred, Body(description="a number")]) -> Any:
        return {"number": body.number}

    async def dependency(result: Annotated[Any, Depends(body_only)]) -> Any:
        return result

    async def default_dependency(result: Any = Depends(body_only)) -> Any:  # noqa: B008
        return result

    async def response(body: dict[str, int]) -> Deferred:
        return Deferred(**body)

    functions = [body_only, optional, annotated, dependency, default_dependency, response]
    return next(function for function in functions if function.__name__ == position)


@pytest.mark.parametrize(
    "position", ["body_only", "optional", "annotated", "dependency", "default_dependency", "response"]
)
def test_first_request_raises_no_warning_of_pydantic(position: str) -> None:
    app = FastAPI()
    app.post("/call")(endpoint_with_a_deferred_model(position))
    build_schemas(app)
    client = ServerClient(local_servers={"it": AsgiTransport(app)})
    response = asyncio.run(client.post("it", "/call", json={"number": 3}))
    assert (response.status, asyncio.run(response.json())) == (200, {"number": 3})


def test_warning_appears_if_schemas_are_not_built_before() -> None:
    app = FastAPI()
    app.post("/call")(endpoint_with_a_deferred_model("body_only"))
    client = ServerClient(local_servers={"it": AsgiTransport(app)})
    with pytest.raises(Warning, match="alias"):
        asyncio.run(client.post("it", "/call", json={"number": 3}))
