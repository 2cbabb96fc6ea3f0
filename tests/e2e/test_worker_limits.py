"""Limits apply to the whole run, however many worker processes it has."""

import asyncio
from pathlib import Path
from typing import Any

from scripts.scripted_endpoint import ScriptedEndpoint, message
from tests.support.commands import run_command


def test_limit_of_concurrent_requests_applies_to_all_workers_together(tmp_path: Path) -> None:
    now, most = 0, 0
    two_at_once = asyncio.Event()

    async def script(request: dict[str, Any]) -> list[dict[str, Any]]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 2:
            two_at_once.set()
        await two_at_once.wait()
        await asyncio.sleep(0.05)  # one request too many would arrive meanwhile
        now -= 1
        return [message("The answer is 1.")]

    configs = "resources_servers/calculator/configs/calculator.yaml,"
    configs += "responses_api_models/openai_model/configs/openai_model.yaml"
    with ScriptedEndpoint(script) as endpoint:
        ran = run_command(
            "ng_collect_rollouts",
            f"+config_paths=[{configs}]",
            "+agent_name=calculator_simple_agent",
            "+input_jsonl_fpath=resources_servers/calculator/data/example.jsonl",
            f"+output_jsonl_fpath={tmp_path / 'rollouts.jsonl'}",
            "+limit=10",
            "+num_repeats=4",
            "+num_samples_in_parallel=8",
            "+hosting=embedded",
            "+executor=processes",
            "+num_workers=2",
            "+policy_model.responses_api_models.openai_model.max_concurrent_requests=2",
            f"+policy_base_url={endpoint.base_url}",
            "+policy_api_key=key",
            "+policy_model_name=any",
        )
    assert ran.returncode == 0, ran.stderr
    assert most == 2
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == len(endpoint.requests)
