"""Every environment gives the same rollouts whether its servers are embedded or served by `ng_run`."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

import nemo_gym
from nemo_gym.server_utils import ServerClient
from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.commands import ROOT, NgRun
from tests.support.players import play

MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
FOREIGN = ROOT / "tests" / "foreign"
AGENTS = {
    "example_single_tool_call": "example_single_tool_call_simple_agent",
    "example_multi_step": "example_multi_step_simple_agent",
    "example_session_state_mgmt": "example_session_state_mgmt_simple_agent",
    "calculator": "calculator_simple_agent",
    "riddle_judge": "riddle_judge_polite_agent",
    "ledger": "ledger_simple_agent",
}
CONFIGS = [*(f"resources_servers/{name}/configs/{name}.yaml" for name in AGENTS), MODEL]
IDS_AND_TIMES = re.compile(rb'"(id|created_at)":("[^"]*"|\d+(\.\d+)?)|[0-9a-f]{32}')


@dataclass
class World:
    """The same servers twice: embedded and served."""

    settings: dict[str, Any]
    served: NgRun

    def run(self, agent: str, rows: list[dict[str, Any]], hosting: str) -> list[bytes]:
        return asyncio.run(self._run(agent, rows, hosting))

    async def _run(self, agent: str, rows: list[dict[str, Any]], hosting: str) -> list[bytes]:
        if hosting == "served":
            client = ServerClient.load_from_global_config(self.served.head)
            return await play_all(client, agent, rows)
        async with nemo_gym.open_servers(CONFIGS, self.settings) as client:
            return await play_all(client, agent, rows)


async def play_all(client: ServerClient, agent: str, rows: list[dict[str, Any]]) -> list[bytes]:
    async def one(row: dict[str, Any]) -> bytes:
        response = await client.post(server_name=agent, url_path="/run", json=row)
        assert response.status == 200, await response.text()
        return await response.read()

    return await asyncio.gather(*(one(row) for row in rows))


def rows_of(environment: str, limit: int = 5) -> list[dict[str, Any]]:
    for root in (ROOT, FOREIGN):
        file = Path(root, "resources_servers", environment, "data", "example.jsonl")
        if file.is_file():
            return [orjson.loads(line) for line in file.read_bytes().splitlines()[:limit]]
    raise AssertionError(environment)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch, ScriptedEndpoint(play) as endpoint:
        patch.setenv("NEMO_GYM_EXTRA_ROOTS", str(FOREIGN))
        settings = {
            **endpoint.settings,
            "ledger.resources_servers.ledger.num_workers": 2,
            "example_session_state_mgmt.resources_servers.example_session_state_mgmt.num_workers": 2,
        }
        with NgRun(CONFIGS, settings) as served:
            yield World(settings, served)


@pytest.mark.parametrize("environment", AGENTS)
def test_rollouts_are_the_same_bytes_on_both_transports(world: World, environment: str) -> None:
    rows = rows_of(environment)
    embedded = world.run(AGENTS[environment], rows, "embedded")
    served = world.run(AGENTS[environment], rows, "served")
    for row, here, there in zip(rows, embedded, served, strict=True):
        assert IDS_AND_TIMES.sub(b"", here) == IDS_AND_TIMES.sub(b"", there)
        rollout = orjson.loads(here)
        if AGENTS[environment].endswith("simple_agent"):  # of another agent the collector adds what it drops
            kept = {key: row[key] for key in row if key != "responses_create_params"}
            assert rollout.items() >= kept.items()
    assert orjson.loads(embedded[0])["reward"] == 1.0  # the scripted player solves the first row


@pytest.mark.parametrize("hosting", ["embedded", "served"])
def test_sessions_of_500_interleaved_rollouts_never_mix(world: World, hosting: str) -> None:
    tools = rows_of("example_session_state_mgmt", 1)[0]["responses_create_params"]["tools"]
    rows = [
        {
            "responses_create_params": {
                "input": f"Add {number} to the counter, then add {7 * number}.",
                "tools": tools,
            },
            "initial_count": 1000 * number,
            "expected_count": 1008 * number,
        }
        for number in range(500)
    ]
    rollouts = [
        orjson.loads(rollout)
        for rollout in world.run("example_session_state_mgmt_simple_agent", rows, hosting)
    ]
    assert [rollout["final_count"] for rollout in rollouts] == [row["expected_count"] for row in rows]


CALLS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("calculator", "POST", "/calculator", {"json": {"expression": "2+2"}}),
    ("calculator", "POST", "/calculator", {"json": {"expresion": "2+2"}}),
    ("calculator", "POST", "/calculator", {"json": None}),
    (
        "calculator",
        "POST",
        "/calculator",
        {"data": b"{not json", "headers": {"Content-Type": "application/json"}},
    ),
    (
        "calculator",
        "POST",
        "/calculator",
        {"data": b'{"expression": "1"}', "headers": {"Content-Type": "text/x"}},
    ),
    ("calculator", "POST", "/calculator?verbose=1", {"json": {"expression": "2*3"}}),
    ("calculator", "POST", "/calculator/", {"json": {"expression": "2*3"}}),
    ("calculator", "POST", "/made_up", {"json": {}}),
    ("calculator", "GET", "/calculator", {}),
    ("calculator", "POST", "/verify", {"json": {"responses_create_params": {"input": []}}}),
    ("example_multi_step", "POST", "/check_shelf", {"json": {"shelf": "Z9"}}),
    ("riddle_judge", "GET", "/hints/piano", {"params": {"limit": 1}}),
    ("riddle_judge", "POST", "/get_hint", {"json": {}}),
    ("ledger", "POST", "/book", {"json": {"amount": "$3"}}),
    ("ledger", "POST", "/book", {"json": {"amount": "-3"}}),
    ("ledger", "POST", "/book", {"json": {"amount": "much"}}),
    ("ledger", "POST", "/statement", {"headers": {"Accept": "text/plain"}}),
    ("ledger", "POST", "/stream", {"json": {}}),
    ("ledger", "POST", "/refuse", {"json": {"amount": "1"}}),
    ("calculator_simple_agent", "POST", "/v1/responses", {"json": {"input": "hello"}}),
    ("calculator_simple_agent", "POST", "/run", {"json": {"responses_create_params": {"input": 7}}}),
    ("policy_model", "POST", "/v1/responses", {"json": {"input": "hello", "model": "ignored", "seed": 3}}),
    ("policy_model", "POST", "/v1/responses", {"json": {"input": []}}),
]
SAME_HEADERS = (
    "content-type",
    "x-ledger",
    "x-nemo-gym-failure-kind",
    "x-nemo-gym-failure-server",
    "x-nemo-gym-failure-status",
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}{call[2]}-{CALLS.index(call)}")
def test_any_call_has_the_same_response_on_both_transports(
    world: World, call: tuple[str, str, str, dict[str, Any]]
) -> None:
    server, method, path, options = call

    async def respond(client: ServerClient) -> tuple[int, bytes, dict[str, str | None], list[str]]:
        response = await client.request(server, path, method, **options)
        headers = {name: response.headers.get(name) for name in SAME_HEADERS}
        return (
            response.status,
            IDS_AND_TIMES.sub(b"", await response.read()),
            headers,
            sorted(response.cookies),
        )

    async def both() -> None:
        async with nemo_gym.open_servers(CONFIGS, world.settings) as client:
            here = await respond(client)
        there = await respond(ServerClient.load_from_global_config(world.served.head))
        assert here == there

    asyncio.run(both())
