import asyncio
import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.hosted import HostedServer
from resources_servers.calculator.app import (
    CalculatorConfig,
    CalculatorRequest,
    CalculatorServer,
    CalculatorVerifyRequest,
    CalculatorVerifyResponse,
)


def calculator() -> CalculatorServer:
    config = CalculatorConfig(host="0.0.0.0", port=8080, entrypoint="", name="calculator")
    return CalculatorServer(config=config, server_client=MagicMock(spec=ServerClient))


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(expression: str) -> dict[str, Any]:
    arguments = json.dumps({"expression": expression})
    return {"type": "function_call", "call_id": "c1", "name": "calculator", "arguments": arguments}


def rollout(*output: dict[str, Any], expected_answer: str = "36") -> dict[str, Any]:
    return {
        "responses_create_params": {"input": "What is 15% of 240?"},
        "expected_answer": expected_answer,
        "_ng_task_index": 7,
        "response": {"id": "r1", "output": list(output), "model": "m"},
    }


def verify(*output: dict[str, Any], expected_answer: str = "36") -> CalculatorVerifyResponse:
    body = CalculatorVerifyRequest.model_validate(rollout(*output, expected_answer=expected_answer))
    return asyncio.run(calculator().verify(body))


def post(path: str, body: Any) -> tuple[int, str]:
    async def posted() -> tuple[int, str]:
        server = HostedServer("calculator", calculator().setup_webserver())
        response = await ServerClient(local_servers={"calculator": server}).post(
            "calculator", path, json=body
        )
        return response.status, await response.text()

    return asyncio.run(posted())


def test_calculator_returns_a_json_string() -> None:
    assert post("/calculator", {"expression": "240 * 0.15"}) == (200, '"36"')


@pytest.mark.parametrize("expression", ["1/0", "9**9**9", "import os", "1" * 500, ""])
def test_expression_without_a_value_returns_the_reason(expression: str) -> None:
    result = asyncio.run(calculator().calculator(CalculatorRequest(expression=expression)))
    assert result.startswith("error: ")
    assert post("/calculator", {"expression": expression}) == (200, json.dumps(result))


def test_wrong_argument_of_a_call_is_an_error_with_its_name() -> None:
    status, text = post("/calculator", {"expr": "1+1"})
    assert status == 422
    assert "expression" in text


def test_response_to_an_unknown_tool_lists_the_tools() -> None:
    status, text = post("/compute", {"expression": "1+1"})
    assert status == 404
    assert "'compute'" in text
    assert "calculator" in text


def test_answer_is_scored_by_its_last_number() -> None:
    result = verify(call("240 * 0.15"), message("15% of 240 is 36"))
    assert (result.reward, result.extracted_answer, result.used_calculator) == (1.0, "36", True)


def test_thousands_separators_are_accepted() -> None:
    result = verify(message("The posted is 1,081"), expected_answer="1081")
    assert (result.reward, result.extracted_answer, result.used_calculator) == (1.0, "1081", False)


def test_only_the_last_message_counts() -> None:
    assert verify(message("It is 36"), message("No, 35")).reward == 0.0
    assert verify(message("It is 36"), message("I am not sure.")).extracted_answer is None


def test_rollout_without_a_message_is_wrong() -> None:
    result = verify(call("240 * 0.15"))
    assert (result.reward, result.extracted_answer) == (0.0, None)


def test_verification_keeps_every_field_of_the_transcript() -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    sent = rollout(message("36") | tokens | {"unheard_of": 1})
    status, text = post("/verify", sent)
    scored = json.loads(text)
    assert status == 200
    item = scored["response"]["output"][0]
    assert {name: item[name] for name in (*tokens, "unheard_of")} == tokens | {"unheard_of": 1}


def test_verified_rollout_can_be_verified_again() -> None:
    scored = json.loads(post("/verify", rollout(message("36")))[1])
    assert json.loads(post("/verify", scored)[1]) == scored
