"""Loading other weights into a running server, embedded and over HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.local_engine import find_weights
from nemo_gym.server_utils import ServerClient
from tests.support.changed_weights import write_changed_weights
from tests.support.commands import NgRun

CONFIG = "responses_api_models/local_model/configs/local_model_for_rl.yaml"
PLACE = "policy_model.responses_api_models.local_model"
SMALL = {f"{PLACE}.slots": 2, f"{PLACE}.context": 256}
BODY = {"input": "Say hi", "temperature": 0, "max_output_tokens": 8}


async def post(client: ServerClient, path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = await client.post("policy_model", path, json=body)
    assert response.status == status, await response.text()
    return await response.json()


async def refit(client: ServerClient, changed: Path) -> None:
    before = await post(client, "/v1/responses", BODY)
    assert not before.get("metadata")

    new_weights = {"model_path": str(changed), "weight_version": 7}
    assert await post(client, "/load_weights", new_weights) == new_weights
    after = await post(client, "/v1/responses", BODY | {"metadata": {"mine": "x"}})
    assert after["metadata"] == {"mine": "x", "weight_version": "7"}
    assert after["model"] == before["model"] == find_weights().stem
    (old,), (new,) = before["output"], after["output"]
    assert old["prompt_token_ids"] == new["prompt_token_ids"]
    assert old["generation_token_ids"] != new["generation_token_ids"]
    assert abs(old["generation_log_probs"][0] - new["generation_log_probs"][0]) > 1

    missing = await post(client, "/load_weights", {"model_path": "nowhere.gguf"}, status=400)
    assert "file nowhere.gguf not found" in missing["detail"]
    bad = await post(client, "/load_weights", {"model_path": "README.md", "weight_version": 8}, status=400)
    assert "README.md" in bad["detail"]
    messages = [{"role": "user", "content": "Say hi"}]
    chat = await post(client, "/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert chat["metadata"] == {"weight_version": "7"}
    long = await post(client, "/v1/responses", {"input": "word " * 400})
    assert long["metadata"] == {"weight_version": "7"}

    unnamed = {"model_path": str(find_weights()), "weight_version": None}
    assert await post(client, "/load_weights", {"model_path": str(find_weights())}) == unnamed
    again = await post(client, "/v1/responses", BODY)
    assert not again.get("metadata")
    assert again["output"][0]["generation_token_ids"] == old["generation_token_ids"]


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    return write_changed_weights(tmp_path / "changed.gguf")


def test_responses_come_from_the_loaded_weights_and_have_their_version(changed: Path) -> None:
    async def embedded() -> None:
        async with nemo_gym.open_servers(CONFIG, SMALL) as client:
            await refit(client, changed)

    asyncio.run(embedded())


def test_weights_are_loaded_over_http_too(changed: Path) -> None:
    with NgRun([CONFIG], SMALL) as served:
        asyncio.run(refit(ServerClient.load_from_global_config(served.head), changed))
