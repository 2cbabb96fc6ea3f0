"""`make demo`: one agent conversation with the calculator, start to finish, in one process.

The model is a scripted endpoint, started here, that the model server reaches over real HTTP; everything
else is what a real run uses.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import nemo_gym
from scripts.scripted_endpoint import Item, ScriptedEndpoint, function_call, message, tool_outputs

CONFIGS = [
    "resources_servers/calculator/configs/calculator.yaml",
    "responses_api_models/openai_model/configs/openai_model.yaml",
]
ROWS = Path(nemo_gym.PARENT_DIR, "resources_servers/calculator/data/example.jsonl")


def scripted_model(request: dict[str, Any]) -> list[Item]:
    """Calls the calculator, then says what it answered."""
    results = tool_outputs(request)
    if not results:
        return [function_call("calculator", expression="240 * 0.15")]
    return [message(f"15% of 240 is {json.loads(results[-1])}.")]


def described(item: Item) -> str:
    """One item of a conversation as a line."""
    match item.get("type", "message"):
        case "function_call":
            arguments = json.loads(item["arguments"])
            return f"model  calls {item['name']}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
        case "function_call_output":
            return f"tool   answers {item['output']}"
        case _ if isinstance(item["content"], str):
            return f"{item['role']:6} {item['content']}"
        case _:
            return f"model  {item['content'][0]['text']}"


async def play(row: dict[str, Any]) -> dict[str, Any]:
    """The row as the agent and the verifier leave it."""
    with ScriptedEndpoint(scripted_model) as endpoint:
        async with nemo_gym.open_servers(CONFIGS, endpoint.settings) as client:
            response = await client.post(server_name="calculator_simple_agent", url_path="/run", json=row)
            response.raise_for_status()
            rollout: dict[str, Any] = await response.json()
            return rollout


def main() -> None:
    with ROWS.open() as file:
        row = json.loads(file.readline())
    started = time.perf_counter()
    rollout = asyncio.run(play(row))
    seconds = time.perf_counter() - started
    for item in [*rollout["responses_create_params"]["input"], *rollout["response"]["output"]]:
        print(f"  {described(item)}")
    reward, expected = rollout["reward"], rollout["expected_answer"]
    tokens = rollout["response"]["usage"]["total_tokens"]
    print(f"\nreward {reward} (expected {expected}), {tokens} tokens, {seconds:.2f} s")
    print("three servers, all in this process: calculator, calculator_simple_agent, policy_model")


if __name__ == "__main__":
    main()
