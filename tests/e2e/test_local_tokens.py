"""Multi-turn rollouts of a real model: the prompt of every turn starts with the tokens of the turn before."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.commands import BIN, ROOT, run_command, wait_until
from tests.support.engines import engines_below

ROLLOUTS = int(os.environ.get("SOAK_ROLLOUTS", "20"))
"""The required number of multi-turn rollouts."""
MOST_STEPS = 2
AGENT = "calculator_simple_agent"
CONFIGS = (
    "resources_servers/calculator/configs/calculator.yaml",
    "responses_api_models/local_model/configs/local_model_for_training.yaml",
)


def rows() -> list[dict[str, Any]]:
    """Four rows that have to call the calculator in each turn, and one with worked examples that may."""
    lines = (ROOT / "resources_servers/calculator/data/few_shot.jsonl").read_text().splitlines()
    given = [json.loads(line) for line in lines[:5]]
    for row in given[:4]:
        params = row["responses_create_params"]
        # Short and simple, so that no call is truncated or malformed.
        parameters = params["tools"][0]["parameters"]
        parameters["properties"]["expression"]["pattern"] = "^[0-9+*]{1,8}$"
        parameters["additionalProperties"] = False
        params |= {"tool_choice": "required", "max_output_tokens": 96, "input": params["input"][-1:]}
    return given


def arguments(folder: Path, repeats: int, **more: object) -> list[str]:
    inputs = folder / "tasks.jsonl"
    inputs.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    settings = {
        "agent_name": AGENT,
        "input_jsonl_fpath": inputs,
        "output_jsonl_fpath": folder / "rollouts.jsonl",
        "num_repeats": repeats,
        "num_samples_in_parallel": 1,
        "hosting": "embedded",
        f"{AGENT}.responses_api_agents.simple_agent.max_steps": MOST_STEPS,
        **more,
    }
    return [f"+config_paths=[{','.join(CONFIGS)}]", *(f"+{key}={value}" for key, value in settings.items())]


def test_every_turn_of_a_real_model_starts_with_the_tokens_before_it(tmp_path: Path) -> None:
    repeats = ROLLOUTS // 4 + 1  # four of the five tasks are multi-turn
    ran = run_command("ng_collect_rollouts", *arguments(tmp_path, repeats), timeout_s=60 + 10 * ROLLOUTS)
    assert ran.returncode == 0, ran.stderr
    report = run_command("ng_token_report", str(tmp_path / "rollouts.jsonl"), "--json")
    found = json.loads(report.stdout)
    assert report.returncode == 0, report.stdout
    assert multi_turn(tmp_path / "rollouts.jsonl") >= ROLLOUTS
    assert found["continuous_share"] == 1.0
    assert found["follow_up_turns"] >= (MOST_STEPS - 1) * ROLLOUTS


def multi_turn(rollouts: Path) -> int:
    def turns(line: str) -> int:
        return sum("generation_token_ids" in item for item in json.loads(line)["response"]["output"])

    with rollouts.open() as lines:
        return sum(turns(line) > 1 for line in lines)


def test_worker_processes_share_one_engine_and_leave_none_running(tmp_path: Path) -> None:
    command = arguments(tmp_path, 1, limit=2, executor="processes", num_workers=2)
    with subprocess.Popen(
        [str(BIN / "ng_collect_rollouts"), *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        seen: set[int] = set()

        def has_ended() -> bool:
            seen.update(engines_below(process.pid))
            return process.poll() is not None

        assert wait_until(has_ended, 120)
        assert process.stdout is not None
        assert process.returncode == 0, process.stdout.read()
    assert len(seen) == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen)
