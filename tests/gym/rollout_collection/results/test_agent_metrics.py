"""The aggregate metrics file: default metrics from columns, own metrics from the environment."""

import asyncio
import json
import logging
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.metrics import Columns, compute_aggregate_metrics, numeric_fields
from nemo_gym.rollout_collection.results.agent_metrics import AgentRollouts, write_aggregate_metrics
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.aggregation import AggregatesMetrics
from tests.support.components import SERVER, write_component, write_files

Record = dict[str, Any]

AGENT = """
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent


class Agent(SimpleResponsesAPIAgent):
    config: BaseResponsesAPIAgentConfig
"""

OWN = """
    def compute_metrics(self, tasks):
        return {
            "tasks": len(tasks),
            "seen": sorted({key for task in tasks for one in task for key in one}),
            "usage": [one["response"] for task in tasks for one in task if "response" in one],
            "per_task_metrics": [{"_ng_task_index": 0, "best": max(one["reward"] for one in tasks[0])}],
        }

    def get_key_metrics(self, agent_metrics):
        return {"tasks": agent_metrics["tasks"]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_agent(root: Path, name: str, app: str = AGENT) -> str:
    config = f"{name}:\n  responses_api_agents:\n    {name}: {{entrypoint: app.py}}\n"
    write_files(root / "responses_api_agents" / name, {"app.py": app, f"configs/{name}.yaml": config})
    return f"responses_api_agents/{name}/configs/{name}.yaml"


def rollout(task: int, reward: float = 1.0, **more: Any) -> Record:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
        "reward": reward,
        "responses_create_params": {"input": "long"},
        "response": {"output": ["long"], "usage": {"input_tokens": 7}},
        **more,
    }


def columns_of(records: Iterable[Record]) -> Columns:
    columns = Columns()
    for one in records:
        odd: list[str] = []
        columns.add(one["_ng_task_index"], one["_ng_rollout_index"], numeric_fields(one, odd), odd)
    return columns


def never() -> list[Record]:
    raise AssertionError("the rollouts need not be read again")


def written(
    agents: dict[str, list[Record]],
    configs: list[str] | None = None,
    *,
    settings: Any = (),
    reads: bool = True,
) -> list[Record]:
    """Write the file for these rollouts with these servers hosted; return its entries."""
    path = Path("out_aggregate_metrics.json")
    given = {
        name: AgentRollouts(columns_of(records), partial(list, records) if reads else never)
        for name, records in agents.items()
    }

    async def write(client: ServerClient | None) -> dict[str, Record]:
        entries = await write_aggregate_metrics(path, given, client)
        return {entry.agent: entry.key_metrics for entry in entries}

    async def write_with_servers() -> dict[str, Record]:
        async with nemo_gym.open_servers(configs or [], settings) as client:
            return await write(client)

    keys = asyncio.run(write(None) if configs is None else write_with_servers())
    entries: list[Record] = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert keys == {entry["agent_ref"]["name"]: entry["key_metrics"] for entry in entries}
    return entries


def test_agent_without_its_own_metrics_gets_default_metrics_and_no_transcripts(folder: Path) -> None:
    records = [rollout(1, 0.5), rollout(0, 1.0, solved=True)]
    (entry,) = written({"plain": records}, [write_agent(folder, "plain")], reads=False)
    assert entry == {"agent_ref": {"name": "plain"}, **compute_aggregate_metrics(records).model_dump()}


def test_agent_with_its_own_metrics_gets_one_request_with_stripped_rollouts(folder: Path) -> None:
    records = [rollout(0, 0.5, answer="x"), {**rollout(1), "response": {"output": []}}]
    (entry,) = written({"own": records}, [write_agent(folder, "own", AGENT + OWN)])
    assert "note" not in entry
    assert entry["key_metrics"] == {"tasks": 2}
    assert entry["agent_metrics"]["mean/reward"] == 0.75
    assert entry["agent_metrics"]["mean/input_tokens"] == 7.0
    assert entry["agent_metrics"]["seen"] == [
        "_ng_rollout_index",
        "_ng_task_index",
        "answer",
        "response",
        "reward",
    ]
    assert entry["agent_metrics"]["usage"] == [{"usage": {"input_tokens": 7}}]
    assert [group.get("best") for group in entry["group_level_metrics"]] == [0.5, None]


POLICY = ["policy_base_url=http://127.0.0.1:1", "policy_api_key=none", "policy_model_name=m"]


@pytest.mark.parametrize("has_own", [True, False])
def test_stock_agent_returns_the_metrics_of_its_environment(folder: Path, has_own: bool) -> None:
    environment = write_component(folder, "shop", SERVER.replace("\n\nRESULT", OWN * has_own + "\n\nRESULT"))
    agent = """
    stock:
      responses_api_agents:
        simple_agent:
          entrypoint: app.py
          resources_server: {type: resources_servers, name: shop}
          model_server: {type: responses_api_models, name: policy_model}
    """
    write_files(folder, {"agent.yaml": agent})
    configs = [environment, "agent.yaml", "responses_api_models/openai_model/configs/openai_model.yaml"]
    (entry,) = written({"stock": [rollout(0)]}, configs, settings=POLICY, reads=has_own)
    assert entry["key_metrics"] == (
        {"tasks": 1} if has_own else {"mean/input_tokens": 7.0, "mean/reward": 1.0}
    )
    assert "note" not in entry


@pytest.mark.parametrize(
    "setup",
    [
        "        app = FastAPI()\n        app.post('/aggregate_metrics')(self.aggregate_metrics)\n",
        "        app = super().setup_webserver()\n        app.get('/x')(self.ask)\n"
        "        app.router.routes[:] = [r for r in app.router.routes if r.name != 'report_own_metrics']\n",
    ],
    ids=["application of its own", "route taken away"],
)
def test_server_without_metadata_may_have_its_own_metrics(folder: Path, setup: str) -> None:
    app = AGENT + OWN + f"\n    def setup_webserver(self):\n{setup}        return app\n"
    app += "\n    async def ask(self) -> int:\n        return 1\n"
    app = "from fastapi import FastAPI\n" + app
    (entry,) = written({"old": [rollout(0)]}, [write_agent(folder, "old", app)])
    assert entry["key_metrics"] == {"tasks": 1}


FAILING = {
    "raises": "        raise ArithmeticError('no luck')",
    "not metrics": "        return {'per_task_metrics': [{'best': 1}]}",
}


@pytest.mark.parametrize("kind", FAILING)
def test_failing_agent_metrics_leave_the_default_metrics_and_a_note(
    folder: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = AGENT + f"\n    def compute_metrics(self, tasks):\n{FAILING[kind]}\n"
    with caplog.at_level(logging.WARNING, "nemo_gym.rollout_collection"):
        (entry,) = written({"failing": [rollout(0)]}, [write_agent(folder, "failing", app)])
    assert entry["agent_metrics"] == compute_aggregate_metrics([rollout(0)]).agent_metrics
    assert entry["note"].startswith("These are the default metrics, without the environment's own: ")
    assert "no luck" in entry["note"] or kind != "raises"
    warnings = [one for one in caplog.records if one.name.endswith("agent_metrics")]
    assert len(warnings) == 1 and "failing" in warnings[0].getMessage()


def test_agent_without_a_server_gets_the_default_metrics_and_a_note(folder: Path) -> None:
    agents = {"gone": [rollout(0)], "plain": [rollout(0)]}
    gone, plain = written(agents, [write_agent(folder, "plain")], reads=False)
    assert "'gone'" in gone["note"]
    assert "note" not in plain
    assert gone["agent_metrics"] == plain["agent_metrics"]


def test_agent_that_is_unreachable_gets_the_default_metrics_and_a_note(folder: Path) -> None:
    block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1}
    client = ServerClient(None, {"away": {"responses_api_agents": {"away": block}}})
    agents = {"away": AgentRollouts(columns_of([rollout(0)]), never)}
    path = folder / "metrics.json"
    asyncio.run(write_aggregate_metrics(path, agents, client))
    (entry,) = json.loads(path.read_text())
    assert "away: no response from GET" in entry["note"]
    assert entry["key_metrics"]["mean/reward"] == 1.0


def test_without_servers_the_file_says_that_none_was_called() -> None:
    (entry,) = written({"any": [rollout(0)]}, reads=False)
    assert "no server was available" in entry["note"]


def test_file_is_formatted_as_by_python_with_agents_in_order(folder: Path) -> None:
    odd_names = {"50% of %b": 2, 'quoted "ä"': 3.5}
    agents = {
        "b": [rollout(0, **odd_names), rollout(1, **odd_names)],
        "ä": [rollout(3, text="x")],
        "empty": [],
    }
    entries = written(agents)
    text = Path("out_aggregate_metrics.json").read_text()
    assert text == json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
    assert [entry["agent_ref"]["name"] for entry in entries] == ["b", "ä", "empty"]
    assert entries[2]["group_level_metrics"] == []


def test_without_agents_the_list_is_empty() -> None:
    assert written({}) == []


def test_non_finite_numbers_never_reach_the_file(folder: Path) -> None:
    app = AGENT + "\n    def compute_metrics(self, tasks):\n"
    app += "        return {'nan': float('nan'), 'huge': 2**70, 'deep': {'x': [float('inf')]}}\n"
    records = [rollout(0, 1.0, odd=math.nan), rollout(0, 0.0, odd=10**400)]
    (entry,) = written({"odd": records}, [write_agent(folder, "odd", app)])
    metrics = entry["agent_metrics"]
    assert (metrics["nan"], metrics["huge"], metrics["deep"]) == (None, 2**70, {"x": [None]})
    assert "mean/odd" not in metrics


class Forwards(AggregatesMetrics):
    """Forwards to a server without own metrics."""

    async def aggregate_metrics(self, body: Any) -> Any:
        raise AssertionError

    async def has_own_metrics(self) -> bool:
        return False


class Refines(Forwards):
    async def aggregate_metrics(self, body: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(("cls", "own"), [(AggregatesMetrics, False), (Forwards, False), (Refines, True)])
def test_class_that_overrides_a_hook_has_its_own_metrics(cls: type[AggregatesMetrics], own: bool) -> None:
    assert asyncio.run(cls().report_own_metrics()) == {"own": own}
