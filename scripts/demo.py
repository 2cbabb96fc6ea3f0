"""`make demo`: a small LLM on this machine plays eight tasks of the calculator four times each.

It shows the command, its progress, the metrics, the files and one of the rollouts. The model is SmolLM2 with
135 million parameters: real, but too small to be good at the tasks.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_gym.machine import available_cores
from nemo_gym.terminal import one_line

CONFIGS = [
    "resources_servers/calculator/configs/calculator.yaml",
    "responses_api_models/local_model/configs/local_model_for_training.yaml",
]
OUTPUT = Path("results/demo/calculator.jsonl")
COMMAND = [
    "ng_collect_rollouts",
    f"+config_paths=[{','.join(CONFIGS)}]",
    "+agent_name=calculator_simple_agent",
    "+input_jsonl_fpath=resources_servers/calculator/data/few_shot.jsonl",
    f"+output_jsonl_fpath={OUTPUT}",
    "+num_repeats=4",
    "+num_repeats_add_seed=true",
    f"+num_samples_in_parallel={max(1, available_cores() // 2)}",
    "+hosting=embedded",
]
CHECK = ["ng_token_report", str(OUTPUT)]


def run(command: list[str]) -> int:
    print(f"\n$ {shlex.join(command)}", flush=True)
    return subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]]).returncode


def described(item: dict[str, Any]) -> str:
    """One item of a conversation as a line."""
    match item:
        case {"type": "function_call", "name": name, "arguments": arguments}:
            return f"model calls {name}({arguments})"
        case {"type": "function_call_output", "output": output}:
            return f"tool returns {output}"
        case {"role": "user", "content": str(text)}:
            return f"user: {text}"
        case {"content": [{"text": text}, *_]}:
            return f"model: {text}"
        case _:
            return f"({item.get('type')})"


def show(rollout: dict[str, Any]) -> None:
    print("\nOne of the rollouts, after the worked examples in its prompt:")
    question = rollout["responses_create_params"]["input"][-1]
    for item in [question, *rollout["response"]["output"]]:
        print(f"  {one_line(described(item))}")  # escapes control characters written by the model
    tokens = rollout["response"]["usage"]["total_tokens"]
    print(f"  reward {rollout['reward']} (expected {rollout['expected_answer']}), {tokens} tokens")


def main() -> int:
    code = run(COMMAND)
    if code == 0:
        with OUTPUT.open() as lines:
            show(max(map(json.loads, lines), key=lambda rollout: rollout["reward"]))
        code = run(CHECK)
    return code


if __name__ == "__main__":
    sys.exit(main())
