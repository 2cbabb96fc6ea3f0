"""Plays rollouts of the session-state example in this process and prints how its memory developed.

`python -m tests.support.session_soak ROLLOUTS`. Every tenth rollout fails in the middle of its episode.
"""

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from fastapi import HTTPException

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.client import ServerClient
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.hosted import HostedServer
from resources_servers.example_session_state_mgmt.app import (
    ExampleSessionStateMgmtConfig,
    ExampleSessionStateMgmtServer,
)
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from scripts.scripted_endpoint import tool_outputs
from tests.support.players import count_up

IN_FLIGHT = 64
FAILED_SHARE = 10
BLOCK = {"host": "127.0.0.1", "port": 1, "entrypoint": ""}


class ScriptedModel(SimpleResponsesAPIModel):
    """Counts as the row says; refuses after the first tool call if the row says that it fails."""

    config: BaseResponsesAPIModelConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        request = body.model_dump(mode="json", exclude_unset=True)
        if tool_outputs(request) and (request.get("metadata") or {}).get("fails"):
            raise HTTPException(400, "refused by the script")
        response = {"id": "r", "created_at": 0, "model": "scripted", "object": "response"}
        return NeMoGymResponse.model_validate({**response, "output": count_up(request), "tools": []})


class Servers:
    """The example, its agent and the model."""

    def __init__(self) -> None:
        local: dict[str, HostedServer] = {}
        self.client = ServerClient(local_servers=local)
        self.counters = ExampleSessionStateMgmtServer(
            config=ExampleSessionStateMgmtConfig(name="counter", **BLOCK), server_client=self.client
        )
        model = ScriptedModel(
            config=BaseResponsesAPIModelConfig(name="model", **BLOCK), server_client=self.client
        )
        settings: dict[str, Any] = {
            **BLOCK,
            "name": "agent",
            "resources_server": {"type": "resources_servers", "name": "counter"},
            "model_server": {"type": "responses_api_models", "name": "model"},
        }
        agent = SimpleAgent(config=SimpleAgentConfig.model_validate(settings), server_client=self.client)
        for name, server in {"counter": self.counters, "model": model, "agent": agent}.items():
            local[name] = HostedServer(name, server.setup_webserver())
        self.hosted = local


def row(number: int) -> dict[str, Any]:
    params: dict[str, Any] = {"input": f"Add {number % 100} to the counter, then add 7."}
    if number % FAILED_SHARE == 0:
        params["metadata"] = {"fails": "yes"}
    return {"responses_create_params": params, "initial_count": 1, "expected_count": number % 100 + 8}


async def play(client: ServerClient, numbers: Iterator[int], until: int) -> None:
    for number in numbers:
        response = await client.post("agent", "/run", json=row(number))
        fails = number % FAILED_SHARE == 0
        assert response.ok is not fails, await response.text()
        assert fails or (await response.json())["reward"] == 1.0
        if number >= until:
            return


async def play_up_to(client: ServerClient, numbers: Iterator[int], until: int) -> None:
    async with asyncio.TaskGroup() as workers:
        for _ in range(IN_FLIGHT):
            workers.create_task(play(client, numbers, until))


def resident_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def soak(rollouts: int) -> dict[str, Any]:
    servers, numbers = Servers(), count(1)
    started = time.perf_counter()
    await play_up_to(servers.client, numbers, rollouts // 10)
    early_mb = resident_mb()
    await play_up_to(servers.client, numbers, rollouts)
    return {
        "rollouts": next(numbers) - 1,
        "seconds": round(time.perf_counter() - started, 1),
        "mb_at_10_percent": early_mb,
        "mb_at_end": resident_mb(),
        "counters": len(servers.counters.counters),
        "sessions": sum(len(server.sessions) for server in servers.hosted.values()),
    }


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # each refusal is logged
    sys.stdout.write(orjson.dumps(asyncio.run(soak(int(sys.argv[1])))).decode())
