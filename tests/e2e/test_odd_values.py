"""Half surrogate pairs and numbers that are not finite, in everything that a rollout consists of."""

import json
from typing import Any

import pytest

from nemo_gym.path_utils import aggregate_metrics_path_for
from scripts.scripted_endpoint import Output, function_call, message
from tests.support.collecting import MODEL, CollectionRuns
from tests.support.commands import NgRun
from tests.support.components import write_files

APP = """
import math
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer
)


class Verified(BaseVerifyResponse):
    model_config = {"extra": "allow"}

    accuracy: float
    note: str = ""


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/look")(self.look)
        return app

    async def look(self, body: dict) -> dict:
        return {"seen": "half a pair: \\ud83d"}

    async def verify(self, body: BaseVerifyRequest) -> Verified:
        reward = math.nan if "What is 0" in str(body.responses_create_params.input) else 1.0
        return Verified(
            **body.model_dump(), reward=reward, accuracy=math.nan, note="cut \\ud800", speed=-math.inf
        )
"""
CONFIG = """
odd:
  resources_servers:
    odd: {entrypoint: app.py, domain: other}
odd_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: odd}
      model_server: {type: responses_api_models, name: policy_model}
"""


async def talk_oddly(number: int, times: int) -> Output | None:
    return [function_call("look")] if times == 1 else [message("cut off within \ud83d")]


@pytest.mark.parametrize("hosting", ["embedded", "served", "processes"])
def test_odd_values_are_recorded_and_counted(runs: CollectionRuns, hosting: str) -> None:
    write_files(runs.folder / "resources_servers/odd", {"app.py": APP, "configs/odd.yaml": CONFIG})
    paths = ("resources_servers/odd/configs/odd.yaml", MODEL)
    runs.adder.override = talk_oddly
    odd = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 4, config_paths=paths, agent="odd_agent")
    if hosting == "served":
        with NgRun(list(paths), odd.endpoint.settings, cwd=odd.folder) as served:
            collector = odd.start(**{"hosting": "served", "head_server.port": served.head.port})
            assert collector.wait() == 1, collector.output
    else:
        collector = odd.start(executor="local" if hosting == "embedded" else hosting)
        assert collector.wait() == 1, collector.output
    [failure] = odd.failures
    assert failure["_ng_failure_class"] == "data"
    assert failure["error_message"] == "the rollout has no numeric reward: reward is NaN or infinite"
    for line in odd.output.read_text().splitlines():
        check_rollout(json.loads(line, parse_constant=pytest.fail))
    [metrics] = json.loads(aggregate_metrics_path_for(odd.output).read_text())
    assert metrics["agent_metrics"]["non_finite/accuracy"] == 3
    assert metrics["agent_metrics"]["non_finite/speed"] == 3
    assert "accuracy 3" in collector.output


def check_rollout(rollout: dict[str, Any]) -> None:
    assert (rollout["reward"], rollout["accuracy"], rollout["speed"]) == (1.0, None, None)
    assert sorted(rollout["_ng_non_finite"]) == ["accuracy", "speed"]
    assert rollout["note"] == "cut \ud800"
    _, tool_output, said = rollout["response"]["output"]
    assert "half a pair" in tool_output["output"]
    assert said["content"][0]["text"] == "cut off within \ud83d"
