import asyncio
import json
from pathlib import Path
from typing import Any

import nemo_gym
from responses_api_models.vllm_model.tests.model_under_test import read_and_sampled
from tests.support.vllm_stand_in import VLLMStandIn

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = "responses_api_models/vllm_model/configs"
CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"


def settings_of(*stand_ins: VLLMStandIn) -> dict[str, Any]:
    urls = [stand_in.base_url for stand_in in stand_ins]
    return {"policy_base_url": urls, "policy_api_key": "no-key", "policy_model_name": "toy"}


async def respond(config: str, settings: dict[str, Any]) -> Any:
    async with nemo_gym.open_servers(f"{CONFIGS}/{config}", settings) as client:
        response = await client.post("policy_model", "/v1/responses", json={"input": "x"})
        assert response.ok, await response.text()
        return await response.json()


def test_shipped_configuration_supports_one_engine_or_several() -> None:
    with VLLMStandIn() as one, VLLMStandIn() as two:
        for settings in (settings_of(one, two), {**settings_of(), "policy_base_url": one.base_url}):
            response = asyncio.run(respond("vllm_model.yaml", settings))
            assert "generation_token_ids" not in response["output"][-1]
    assert len(one.bodies()) == 2
    assert one.bodies()[0]["model"] == "toy"


def test_shipped_configuration_for_training_returns_tokens() -> None:
    with VLLMStandIn() as vllm:
        response = asyncio.run(respond("vllm_model_for_training.yaml", settings_of(vllm)))
    assert read_and_sampled(response)


def first_row() -> Any:
    with (ROOT / "resources_servers/calculator/data/example.jsonl").open() as rows:
        return json.loads(next(rows))


def calculate(prompt: str) -> str:
    if "<|im_start|>tool" in prompt:
        return "That is 36."
    return '<tool_call>{"name": "calculator", "arguments": {"expression": "240 * 0.15"}}</tool_call>'


def test_shipped_configuration_for_an_unmodified_vllm_keeps_the_ids_of_every_turn() -> None:
    async def run(vllm: VLLMStandIn) -> Any:
        settings = {**settings_of(vllm), "policy_eos_token": "<|im_end|>"}
        paths = [CALCULATOR, f"{CONFIGS}/vllm_model_for_training_stock.yaml"]
        async with nemo_gym.open_servers(paths, settings) as client:
            response = await client.post("calculator_simple_agent", "/run", json=first_row())
            assert response.ok, await response.text()
            return await response.json()

    with VLLMStandIn(calculate) as vllm:
        result = asyncio.run(run(vllm))
    assert result["reward"] == 1.0
    called, final = [item for item in result["response"]["output"] if item.get("generation_token_ids")]
    seen = [*called["prompt_token_ids"], *called["generation_token_ids"]]
    assert final["prompt_token_ids"][: len(seen)] == seen
