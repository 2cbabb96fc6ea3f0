"""NaN and infinite scores are null in JSON and named, whatever the route returns and however it is called."""

import asyncio
import json
import math
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from pydantic import BaseModel, ConfigDict

from nemo_gym.servers.non_finite import names_non_finite
from tests.gym.servers.serving import new_app, over_both


class Scored(BaseModel):
    model_config = ConfigDict(extra="allow")

    reward: float
    accuracy: float = 0.0


class Closed(BaseModel):
    reward: float


ODD = Scored.model_validate({"reward": 1.0, "accuracy": math.nan, "speed": -math.inf, "text": "\ud800"})


async def as_model() -> Scored:
    return ODD


async def as_data() -> dict[str, Any]:
    return {"reward": 1.0, "accuracy": math.nan, "speed": math.inf, "text": "\ud800"}


async def as_data_without_annotation():  # type: ignore[no-untyped-def]  # as many environments write it
    return await as_data()


def blocking() -> Scored:
    return ODD


async def listed() -> dict[str, Any]:
    return {**await as_data(), "_ng_non_finite": ["speed"]}


async def through_the_application(nothing: None = Depends(lambda: None)) -> Scored:
    return ODD


ROUTES = [as_model, as_data, as_data_without_annotation, blocking, listed, through_the_application]


def app() -> FastAPI:
    made = new_app()
    for route in ROUTES:
        made.post(f"/{route.__name__}")(names_non_finite(route))
    made.post("/closed")(names_non_finite(closed))
    made.post("/finite")(names_non_finite(finite))
    return made


async def closed() -> Closed:
    return Closed(reward=math.inf)


async def finite() -> Scored:
    return Scored(reward=0.5)


def body_of(client: Any, name: str) -> dict[str, Any]:
    response = asyncio.run(client.post("it", f"/{name}", json={}))
    assert response.status == 200, response.body
    body: dict[str, Any] = json.loads(response.body, parse_constant=pytest.fail)
    return body


def test_scores_that_are_not_finite_are_null_and_named() -> None:
    for client in over_both(app):
        for route in ROUTES:
            body = body_of(client, route.__name__)
            assert (body["reward"], body["accuracy"], body["speed"]) == (1.0, None, None), route
            assert sorted(body["_ng_non_finite"]) == ["accuracy", "speed"]
            assert body["text"] == "\ud800"
        assert body_of(client, "closed") == {"reward": None, "_ng_non_finite": ["reward"]}


def test_finite_scores_are_unchanged() -> None:
    for client in over_both(app):
        assert body_of(client, "finite") == {"reward": 0.5, "accuracy": 0.0}
