"""Collections with an agent that takes its responses to `/run` from a file; no model is called."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nemo_gym
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollout_collection.results.collection_result import CollectionResult
from tests.support.components import write_files

AGENT = "scripted"
MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"
MODEL = {
    "policy_base_url": "http://127.0.0.1:1/v1",
    "policy_api_key": "sk-1234567890",
    "policy_model_name": "some-model",
}

_APP = """
import json
from pathlib import Path

from fastapi import Request, Response

from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent


class Config(BaseResponsesAPIAgentConfig):
    style: str = "plain"


class Agent(SimpleResponsesAPIAgent):
    config: Config

    async def run(self, request: Request) -> Response:
        sent = await request.body()
        with Path("bodies").open("ab") as file:
            file.write(sent + b"\\n")
        row = json.loads(sent)
        key = f"{row['_ng_task_index']}:{row['_ng_rollout_index']}"
        with Path("played").open("a") as file:
            file.write(f"{key}\\n")
        file = Path("responses.json")
        response = json.loads(file.read_text()).get(key, {}) if file.exists() else {}
        rollout = row | {"reward": 1.0, "response": {"output": []}} | response.get("fields", {})
        body = response.get("body") or json.dumps(rollout)
        return Response(body, response.get("status", 200), media_type="application/json")
"""
_CONFIG = "{name}: {{responses_api_agents: {{scripted: {{entrypoint: app.py}}}}}}\n"


def write_agent(root: Path, names: Sequence[str] = (AGENT,)) -> str:
    """Write the agent under `root`, with one instance per name; returns the path of its configuration."""
    config = "".join(_CONFIG.format(name=name) for name in names)
    folder = root / "responses_api_agents" / "scripted"
    write_files(folder, {"app.py": _APP, "configs/scripted.yaml": config})
    return "responses_api_agents/scripted/configs/scripted.yaml"


def row(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": text}, **fields}


@dataclass
class Playground:
    """A folder to collect in; it must be the working directory."""

    folder: Path
    agents: Sequence[str] = (AGENT,)
    servers: dict[str, Any] = field(default_factory=lambda: dict(MODEL))
    """Settings of the servers."""
    _responses: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config_paths = [write_agent(self.folder, self.agents), MODEL_CONFIG]
        self.input = self.folder / "input.jsonl"
        self.output = self.folder / "out" / "rollouts.jsonl"
        self.materialized = self.folder / "out" / "rollouts_materialized_inputs.jsonl"
        self.failures = self.folder / "out" / "rollouts_failures.jsonl"
        self.manifest = self.folder / "out" / "rollouts_manifest.json"

    def write_input(self, *rows: Mapping[str, Any]) -> None:
        """Write the input file."""
        self.input.write_text("".join(json.dumps(one) + "\n" for one in rows))

    def set_response(self, key: str, body: str | None = None, status: int = 200, **fields: Any) -> None:
        """Set the response of the agent for a key: a complete body, or the row with these fields."""
        self._responses[key] = {"body": body, "status": status, "fields": fields}
        (self.folder / "responses.json").write_text(json.dumps(self._responses))

    def reset_responses(self) -> None:
        self._responses.clear()
        (self.folder / "responses.json").unlink(missing_ok=True)

    def config(self, **settings: Any) -> RolloutCollectionConfig:
        usual = {
            "input_jsonl_fpath": "input.jsonl",
            "output_jsonl_fpath": "out/rollouts.jsonl",
            "agent_name": AGENT,
            "retry_backoff_s": 0.0,
            "max_attempts": 2,
        }
        return RolloutCollectionConfig.model_validate(usual | settings)

    def collect(self, *, quiet: bool = False, **settings: Any) -> CollectionResult:
        return asyncio.run(self._collect(self.config(**settings), quiet))

    async def _collect(self, config: RolloutCollectionConfig, quiet: bool) -> CollectionResult:
        async with nemo_gym.open_servers(self.config_paths, self.servers):
            return await RolloutCollectionHelper().run_from_config(config, quiet=quiet)

    def played(self) -> list[str]:
        """The keys of all attempts since the last call, sorted."""
        file = self.folder / "played"
        keys = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return sorted(keys)

    def bodies(self) -> list[bytes]:
        """All request bodies that the agent has received."""
        return (self.folder / "bodies").read_bytes().splitlines()

    def names(self) -> set[str]:
        """The names of the files in the output folder."""
        return {path.name for path in self.output.parent.iterdir()}


def records_of(path: Path) -> list[dict[str, Any]]:
    """Every line of a JSONL file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def keys_of(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{one['_ng_task_index']}:{one['_ng_rollout_index']}" for one in records]
