"""Stocktaking in a warehouse: each shelf names the next one, so the model needs one call per shelf.

The verifier compares the last submitted list with the expected one: same numbers, same order, same length.
"""

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ValidationError

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall


class CheckShelfRequest(BaseModel):
    shelf: str


class CheckShelfResponse(BaseModel):
    units: int
    next_shelf: str | None
    """None at the end of the route."""


class SubmitUnitsRequest(BaseModel):
    units: list[int]


class SubmitUnitsResponse(BaseModel):
    message: str


WAREHOUSE = {
    "A1": CheckShelfResponse(units=12, next_shelf="C4"),
    "A2": CheckShelfResponse(units=57, next_shelf="B5"),
    "B2": CheckShelfResponse(units=31, next_shelf="A2"),
    "B5": CheckShelfResponse(units=8, next_shelf=None),
    "C1": CheckShelfResponse(units=44, next_shelf="A1"),
    "C4": CheckShelfResponse(units=5, next_shelf="D3"),
    "D3": CheckShelfResponse(units=73, next_shelf=None),
    "D6": CheckShelfResponse(units=19, next_shelf="B2"),
    "E1": CheckShelfResponse(units=26, next_shelf="E9"),
    "E9": CheckShelfResponse(units=60, next_shelf="F2"),
    "F2": CheckShelfResponse(units=26, next_shelf=None),
}


class ExampleMultiStepConfig(BaseResourcesServerConfig):
    pass


class ExampleMultiStepVerifyRequest(BaseVerifyRequest):
    expected_units: list[int]


class ExampleMultiStepVerifyResponse(BaseVerifyResponse):
    expected_units: list[int]
    submitted_units: list[int] | None
    """None if there is no submission, or if it is not a list of whole numbers."""
    num_correct: int
    """The number of positions at which both lists have the same number."""
    accuracy: float
    """`num_correct` divided by the length of the longer list."""


class ExampleMultiStepServer(SimpleResourcesServer):
    config: ExampleMultiStepConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/check_shelf")(self.check_shelf)
        app.post("/submit_units")(self.submit_units)
        return app

    async def check_shelf(self, body: CheckShelfRequest) -> CheckShelfResponse:
        shelf = WAREHOUSE.get(body.shelf.strip().upper())
        if shelf is None:
            raise HTTPException(404, f"there is no shelf {body.shelf!r}")
        return shelf

    async def submit_units(self, body: SubmitUnitsRequest) -> SubmitUnitsResponse:
        return SubmitUnitsResponse(message=f"Submitted {len(body.units)} numbers.")

    async def verify(self, body: ExampleMultiStepVerifyRequest) -> ExampleMultiStepVerifyResponse:
        expected, submitted = body.expected_units, last_submission(body.response)
        pairs = zip(expected, submitted or [], strict=False)
        num_correct = sum(left == right for left, right in pairs)
        score = {
            "reward": float(submitted == expected),
            "submitted_units": submitted,
            "num_correct": num_correct,
            "accuracy": num_correct / max(len(expected), len(submitted or []), 1),
        }
        return ExampleMultiStepVerifyResponse.model_validate(dict(body) | score)


def last_submission(response: NeMoGymResponse) -> list[int] | None:
    """The list in the last call of `submit_units`, parsed as the tool parses it."""
    for item in reversed(response.output):
        if isinstance(item, NeMoGymResponseFunctionToolCall) and item.name == "submit_units":
            try:
                return SubmitUnitsRequest.model_validate_json(item.arguments).units
            except ValidationError:
                return None
    return None


if __name__ == "__main__":
    ExampleMultiStepServer.run_webserver()
