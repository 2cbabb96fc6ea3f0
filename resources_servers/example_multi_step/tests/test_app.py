import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.hosted import HostedServer
from resources_servers.example_multi_step.app import (
    WAREHOUSE,
    ExampleMultiStepConfig,
    ExampleMultiStepServer,
    ExampleMultiStepVerifyRequest,
    ExampleMultiStepVerifyResponse,
)

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"


def warehouse() -> ExampleMultiStepServer:
    config = ExampleMultiStepConfig(host="0.0.0.0", port=8080, entrypoint="", name="warehouse")
    return ExampleMultiStepServer(config=config, server_client=MagicMock(spec=ServerClient))


def post(path: str, body: Any) -> tuple[int, Any]:
    async def posted() -> tuple[int, Any]:
        server = HostedServer("warehouse", warehouse().setup_webserver())
        response = await ServerClient(local_servers={"warehouse": server}).post("warehouse", path, json=body)
        return response.status, await response.json()

    return asyncio.run(posted())


def submission(arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c1", "name": "submit_units", "arguments": arguments}


def verify(*submissions: str) -> ExampleMultiStepVerifyResponse:
    row = {
        "responses_create_params": {"input": "Take stock."},
        "expected_units": [12, 5, 73],
        "response": {"output": [submission(arguments) for arguments in submissions]},
    }
    return asyncio.run(warehouse().verify(ExampleMultiStepVerifyRequest.model_validate(row)))


def test_shelf_has_its_units_and_the_next_shelf() -> None:
    assert post("/check_shelf", {"shelf": "A1"}) == (200, {"units": 12, "next_shelf": "C4"})
    assert post("/check_shelf", {"shelf": " d3 "}) == (200, {"units": 73, "next_shelf": None})


def test_unknown_shelf_is_an_error_that_names_it() -> None:
    assert post("/check_shelf", {"shelf": "Z9"}) == (404, {"detail": "there is no shelf 'Z9'"})


def test_confirmation_does_not_reveal_whether_the_submission_is_correct() -> None:
    assert post("/submit_units", {"units": [1, 2]}) == (200, {"message": "Submitted 2 numbers."})


def test_exact_list_in_order_is_rewarded() -> None:
    result = verify('{"units": [12, 5, 73]}')
    assert (result.reward, result.num_correct, result.accuracy) == (1.0, 3, 1.0)
    assert result.submitted_units == [12, 5, 73]


@pytest.mark.parametrize(
    ("submitted", "num_correct", "accuracy"),
    [
        ([5, 12, 73], 1, 1 / 3),
        ([12, 5], 2, 2 / 3),
        ([12, 5, 73, 73], 3, 3 / 4),
        ([], 0, 0.0),
    ],
)
def test_wrong_order_or_length_gets_no_reward(
    submitted: list[int], num_correct: int, accuracy: float
) -> None:
    result = verify(json.dumps({"units": submitted}))
    assert (result.reward, result.num_correct, result.accuracy) == (0.0, num_correct, accuracy)


def test_last_submission_counts() -> None:
    assert verify('{"units": []}', '{"units": [12, 5, 73]}').reward == 1.0
    assert verify('{"units": [12, 5, 73]}', '{"units": []}').reward == 0.0


@pytest.mark.parametrize(
    "submissions", [[], ["not json"], ['{"units": "12"}'], ['{"units": [12, 5, "many"]}']]
)
def test_rollout_without_a_valid_submission_gets_no_reward(submissions: list[str]) -> None:
    result = verify(*submissions)
    assert (result.reward, result.submitted_units, result.accuracy) == (0.0, None, 0.0)


def test_example_rows_expect_the_units_along_their_route() -> None:
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) >= 5
    for line in lines:
        row = json.loads(line)
        question = row["responses_create_params"]["input"][-1]["content"]
        shelf, units = question.removesuffix(".").split()[-1], []
        while shelf is not None:
            units.append(WAREHOUSE[shelf].units)
            shelf = WAREHOUSE[shelf].next_shelf
        assert row["expected_units"] == units
        assert len(units) >= 2
        names = [tool["name"] for tool in row["responses_create_params"]["tools"]]
        assert names == ["check_shelf", "submit_units"]
