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
    async def posted() -> tuple[int, Any]:
        server = HostedServer("weather", weather_server().setup_webserver())
        response = await ServerClient(local_servers={"weather": server}).post("weather", path, json=body)
        return response.status, await response.json()

    return asyncio.run(posted())


def test_weather_is_that_of_the_requested_city() -> None:
    response = asyncio.run(weather_server().get_weather(GetWeatherRequest(city="Oslo")))
    assert response.city == "Oslo"
    assert "Oslo" in response.weather_description
    assert post("/get_weather", {"city": "Oslo"}) == (200, response.model_dump())


def test_response_to_an_unknown_tool_lists_the_tools() -> None:
    status, response = post("/get_wheather", {"city": "Oslo"})
    assert status == 404
    assert "get_weather" in response["detail"]


def test_every_rollout_gets_a_reward() -> None:
    row = {"responses_create_params": {"input": "hi"}, "response": {"output": []}}
    status, scored = post("/verify", row)
    assert status == 200
    assert scored["reward"] == 1.0
    assert scored["responses_create_params"]["input"] == "hi"


def test_example_rows_are_requests_with_the_tool() -> None:
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) >= 5
    for line in lines:
        params = BaseRunRequest.model_validate(json.loads(line)).responses_create_params
        assert [tool["name"] for tool in params.tools or []] == ["get_weather"]
