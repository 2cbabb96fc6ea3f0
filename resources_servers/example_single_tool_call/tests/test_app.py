import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.hosted import HostedServer
from resources_servers.example_single_tool_call.app import (
    ExampleSingleToolCallConfig,
    ExampleSingleToolCallServer,
    GetWeatherRequest,
)

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"


def weather_server() -> ExampleSingleToolCallServer:
    config = ExampleSingleToolCallConfig(host="0.0.0.0", port=8080, entrypoint="", name="weather")
    return ExampleSingleToolCallServer(config=config, server_client=MagicMock(spec=ServerClient))


def post(path: str, body: Any) -> tuple[int, Any]:
    async def answer() -> tuple[int, Any]:
        server = HostedServer("weather", weather_server().setup_webserver())
        response = await ServerClient(local_servers={"weather": server}).post("weather", path, json=body)
        return response.status, await response.json()

    return asyncio.run(answer())


def test_weather_is_told_for_the_city_asked_about() -> None:
    answer = asyncio.run(weather_server().get_weather(GetWeatherRequest(city="Oslo")))
    assert answer.city == "Oslo"
    assert "Oslo" in answer.weather_description
    assert post("/get_weather", {"city": "Oslo"}) == (200, answer.model_dump())


def test_made_up_tool_is_answered_with_the_tools_there_are() -> None:
    status, answer = post("/get_wheather", {"city": "Oslo"})
    assert status == 404
    assert "get_weather" in answer["detail"]


def test_every_rollout_is_rewarded_and_kept_whole() -> None:
    row = {"responses_create_params": {"input": "hi"}, "note": "kept", "response": {"output": []}}
    status, scored = post("/verify", row)
    assert status == 200
    assert scored["reward"] == 1.0
    assert scored["note"] == "kept"
    assert scored["responses_create_params"]["input"] == "hi"


def test_example_rows_are_requests_with_the_tool() -> None:
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) >= 5
    for line in lines:
        params = BaseRunRequest.model_validate(json.loads(line)).responses_create_params
        assert [tool["name"] for tool in params.tools or []] == ["get_weather"]
