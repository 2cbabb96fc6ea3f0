"""`make demo`: collects rollouts with the calculator, shows one of them, the metrics and the files.

The model is a scripted endpoint, started here, that the model server reaches over real HTTP; everything
else is what a real run uses, and the command that is run is printed.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.scripted_endpoint import Item, ScriptedEndpoint, function_call, message, tool_outputs, user_text

CONFIGS = [
    "resources_servers/calculator/configs/calculator.yaml",
    "responses_api_models/openai_model/configs/openai_model.yaml",
]
OUTPUT = Path("results/demo/calculator.jsonl")
_OPERATORS = {"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "% of": " / 100 *", ",": ""}
"""The question's signs and what a calculator takes."""


def scripted_model(request: dict[str, Any]) -> list[Item]:
    """Calls the calculator, then says what it answered."""
    results = tool_outputs(request)
    if not results:
        return [function_call("calculator", expression=expression(user_text(request)))]
    return [message(f"The answer is {json.loads(results[-1])}.")]


def expression(question: str) -> str:
    """What to type for a question of the example data."""
    plain = question.removeprefix("What is ").rstrip("?")
    for sign, typed in _OPERATORS.items():
        plain = plain.replace(sign, typed)
    numbers = re.findall(r"\d+", plain)
    if "books" in plain:
        return "{} * {} + {}".format(*numbers)
    if "stickers" in plain:
        return "({} - {}) / {}".format(*numbers)
    return plain


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


def show(rollout: dict[str, Any]) -> None:
    print("\nOne of the rollouts:")
    for item in [*rollout["responses_create_params"]["input"], *rollout["response"]["output"]]:
        print(f"  {described(item)}")
    tokens = rollout["response"]["usage"]["total_tokens"]
    print(f"  reward {rollout['reward']} (expected {rollout['expected_answer']}), {tokens} tokens")


def main() -> int:
    with ScriptedEndpoint(scripted_model) as endpoint:
        command = [
            "ng_collect_rollouts",
            f"+config_paths=[{','.join(CONFIGS)}]",
            *(f"+{key}={value}" for key, value in endpoint.settings.items()),
            "+agent_name=calculator_simple_agent",
            "+input_jsonl_fpath=resources_servers/calculator/data/example.jsonl",
            f"+output_jsonl_fpath={OUTPUT}",
            "+limit=50",
            "+num_repeats=4",
        ]
        print(shlex.join(command), flush=True)
        code = subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]]).returncode
    if code == 0:
        with OUTPUT.open() as file:
            show(json.loads(file.readline()))
    return code


if __name__ == "__main__":
    sys.exit(main())
