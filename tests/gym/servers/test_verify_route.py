import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict

from nemo_gym.base_resources_server import (
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.judge import JudgeError
from nemo_gym.openai_utils import NeMoGymResponse
from scripts.scripted_endpoint import message
from tests.gym.servers.kinds import World

ROW = {"responses_create_params": {"input": "q"}, "expected_answer": "42"}
BODY = {**ROW, "response": {"output": [message("It is 42")]}}


def verified_by(verify: Callable[..., Any], body: Any = BODY) -> tuple[int, Any]:
    """Status and body of the response of an environment with this `verify`."""

    async def verified() -> tuple[int, Any]:
        world = World()
        environment = type("Environment", (SimpleResourcesServer,), {"verify": verify})
        world.add("environment", environment)
        response = await world.client.post("environment", "/verify", json=body)
        return response.status, await response.json()

    return asyncio.run(verified())


class Row(BaseRunRequest):
    expected_answer: str


class Score(BaseModel):
    reward: float
    accuracy: float = 1.0


def of_dict(self: Any, task: Any, response: Any) -> Any:
    assert task == ROW
    return {"reward": float(task["expected_answer"] in response.output_text), "accuracy": 1.0}


async def of_dict_async(self: Any, task: Any, response: Any) -> Any:
    return of_dict(self, task, response)


def of_dict_annotated(self, task: dict, response: NeMoGymResponse) -> dict:  # type: ignore[no-untyped-def, type-arg]
    return of_dict(self, task, response)  # type: ignore[no-any-return]


def of_bare(self, task, response):  # type: ignore[no-untyped-def]
    return of_dict(self, task, response)


def of_model(self: Any, row: Row, model_response: NeMoGymResponse) -> Score:
    return Score(reward=float(row.expected_answer in model_response.output_text))


def of_plain_response(self: Any, task: dict[str, Any], response: dict[str, Any]) -> dict[str, float]:
    text = response["output"][0]["content"][0]["text"]
    return {"reward": float(task["expected_answer"] in text), "accuracy": 1.0}


def of_request(self: Any, task: BaseVerifyRequest, response: NeMoGymResponse) -> dict[str, float]:
    assert task.response.output_text == response.output_text
    return {"reward": 1.0, "accuracy": 1.0}


def of_body(self, body):  # type: ignore[no-untyped-def]
    assert body == BODY
    return {"reward": 1.0, "accuracy": 1.0}


@pytest.mark.parametrize(
    "verify",
    [
        *(of_dict, of_dict_async, of_dict_annotated, of_bare, of_model),
        *(of_plain_response, of_request, of_body),
    ],
)
def test_verify_may_take_the_task_and_the_models_response(verify: Callable[..., Any]) -> None:
    assert verified_by(verify) == (200, {"reward": 1.0, "accuracy": 1.0})


async def request_first(self: Any, request: Request, body: BaseVerifyRequest) -> dict[str, float]:
    return {"reward": float(bool(request.session) and bool(body.response.output))}


async def request_last(self: Any, body: BaseVerifyRequest, request: Request) -> dict[str, float]:
    return {"reward": float(bool(request.session) and bool(body.response.output))}


async def with_response_object(self: Any, body: BaseVerifyRequest, response: Response) -> dict[str, float]:
    response.headers["x-scored"] = "yes"
    return {"reward": float(bool(body.response.output))}


async def with_option(self: Any, body: BaseVerifyRequest, strict: bool = False) -> dict[str, float]:
    return {"reward": 1.0 - strict}


@pytest.mark.parametrize("verify", [request_first, request_last, with_response_object, with_option])
def test_signatures_of_fastapi_stay_as_they_are(verify: Callable[..., Any]) -> None:
    assert verified_by(verify) == (200, {"reward": 1.0})


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({**BODY, "response": "text"}, ["body", "response"]),
        ({**BODY, "expected_answer": 42}, ["body", "expected_answer"]),
        (ROW, ["body", "response"]),
    ],
)
def test_invalid_task_or_response_gets_a_422_with_its_place(body: Any, place: list[str]) -> None:
    status, found = verified_by(of_model, body)
    assert (status, found["detail"][0]["loc"]) == (422, place)


def test_judge_error_is_filed_with_the_row() -> None:
    def judged(self: Any, task: Any, response: Any) -> Any:
        raise JudgeError("asleep")

    status, record = verified_by(judged)
    assert (status, record["_ng_failure_class"], record["expected_answer"]) == (200, "judge_failed", "42")


def test_only_a_response_that_allows_more_fields_than_it_declares_keeps_them() -> None:
    class Open(BaseVerifyResponse):
        model_config = ConfigDict(extra="allow")

    async def dropping(self: Any, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse.model_validate(dict(body) | {"reward": 1.0, "note": 1})

    async def keeping(self: Any, body: BaseVerifyRequest) -> Open:
        return Open.model_validate(dict(body) | {"reward": 1.0, "note": 1})

    assert verified_by(dropping)[1].keys() == {"responses_create_params", "response", "reward"}
    assert verified_by(keeping)[1].keys() == {*BODY, "reward", "note"}
