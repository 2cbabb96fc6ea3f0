"""`plain_http_client: false` switches the plain HTTP client off in every process of a run."""

import asyncio
from pathlib import Path

import orjson
import pytest

import nemo_gym
from nemo_gym.server_utils import ServerClient
from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.commands import ROOT, NgRun, run_command
from tests.support.players import play

CONFIGS = [
    "resources_servers/calculator/configs/calculator.yaml",
    "responses_api_models/openai_model/configs/openai_model.yaml",
]
AGENT = "calculator_simple_agent"
ROWS = ROOT / "resources_servers/calculator/data/example.jsonl"


def clients_of(endpoint: ScriptedEndpoint) -> set[str]:
    """The HTTP clients that called the endpoint: the plain one sends no User-Agent."""
    agents = {headers.get("User-Agent", "") for headers in endpoint.headers}
    return {"aiohttp" if "aiohttp" in agent else "plain" for agent in agents}


async def run_first_row(client: ServerClient) -> None:
    row = orjson.loads(ROWS.read_bytes().splitlines()[0])
    response = await client.post(AGENT, "/run", json=row)
    assert response.ok, await response.text()


@pytest.mark.fast_path
@pytest.mark.parametrize(("settings", "expected"), [({}, "plain"), ({"plain_http_client": False}, "aiohttp")])
def test_setting_applies_to_embedded_servers(settings: dict[str, object], expected: str) -> None:
    async def run(endpoint: ScriptedEndpoint) -> None:
        async with nemo_gym.open_servers(CONFIGS, {**endpoint.settings, **settings}) as client:
            await run_first_row(client)

    with ScriptedEndpoint(play) as endpoint:
        asyncio.run(run(endpoint))
        assert clients_of(endpoint) == {expected}


def test_setting_reaches_the_servers_of_ng_run() -> None:
    with ScriptedEndpoint(play) as endpoint:
        with NgRun(CONFIGS, {**endpoint.settings, "plain_http_client": "false"}) as served:
            asyncio.run(run_first_row(ServerClient.load_from_global_config(served.head)))
        assert clients_of(endpoint) == {"aiohttp"}


def test_setting_reaches_worker_processes(tmp_path: Path) -> None:
    with ScriptedEndpoint(play) as endpoint:
        ran = run_command(
            "ng_collect_rollouts",
            f"+config_paths=[{','.join(CONFIGS)}]",
            f"+agent_name={AGENT}",
            f"+input_jsonl_fpath={ROWS}",
            f"+output_jsonl_fpath={tmp_path / 'rollouts.jsonl'}",
            "+limit=2",
            "+hosting=embedded",
            "+executor=processes",
            "+num_workers=2",
            "+plain_http_client=false",
            *(f"+{key}={value}" for key, value in endpoint.settings.items()),
        )
        assert ran.returncode == 0, ran.stderr
        assert clients_of(endpoint) == {"aiohttp"}
