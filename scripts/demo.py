"""`make demo`: a small LLM on this machine plays eight tasks of the calculator four times each.

It shows the command, its progress, the metrics, the files and one of the rollouts. The model is SmolLM2 with
135 million parameters: real, but too small to be good at the tasks.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from nemo_gym.machine import available_cores

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
SHOW = ["ng_show", str(OUTPUT), "--best", "1"]
CHECK = ["ng_token_report", str(OUTPUT)]


def run(command: list[str]) -> int:
    print(f"\n$ {shlex.join(command)}", flush=True)
    return subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]]).returncode


def main() -> int:
    return run(COMMAND) or run(SHOW) or run(CHECK)


if __name__ == "__main__":
    sys.exit(main())
