"""The floor: a rollout of `example_single_tool_call` without any framework, the lower bound of its cost.

It makes the same two requests as the embedded servers and writes the same line, with aiohttp and orjson. It
validates nothing and handles no errors.
"""

from typing import Any

import aiohttp
import orjson

MODEL = "scripted"
_PARAMS: dict[str, Any] = dict.fromkeys(
    (
        "input",
        "model",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "temperature",
        "top_p",
        "top_logprobs",
        "seed",
        "reasoning",
        "text",
        "metadata",
        "stream",
    )
)
"""Fields that the wire model of a request adds to a line."""
_RESPONSE: dict[str, Any] = {"error": None, "incomplete_details": None, "reasoning": None, "text": None}
"""Fields that the wire model of a response adds to a line."""
_COUNTS = ("input_tokens", "output_tokens", "total_tokens")


async def play_floor(session: aiohttp.ClientSession, url: str, headers: dict[str, str], row: bytes) -> bytes:
    """Play one rollout; returns its line. `url` is the endpoint's `/responses`."""
    task = orjson.loads(row)
    params = task["responses_create_params"]
    prompt = params["input"]
    output: list[dict[str, Any]] = []
    usage: dict[str, Any] = {}
    steps, tools = 0, dict.fromkeys(("calls", "failed", "unknown", "invalid"), 0)
    while True:
        steps += 1
        request = {**params, "input": prompt + output, "model": MODEL}
        async with session.post(url, data=orjson.dumps(request), headers=headers) as received:
            response = orjson.loads(await received.read())
        output += response["output"]
        add_usage(usage, response["usage"])
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls:
            break
        for call in calls:
            text = get_weather(**orjson.loads(call["arguments"]))
            tools["calls"] += 1
            output.append({"type": "function_call_output", "call_id": call["call_id"], "output": text})
    for message in prompt:
        message["type"] = "message"
    line = {
        **task,
        "responses_create_params": {**_PARAMS, **params},
        "response": {**_RESPONSE, **response, "output": output, "usage": usage},
        "_ng_tools": {"get_weather": tools},
        "_ng_steps": steps,
        "reward": 1.0,
    }
    return orjson.dumps(line)


def get_weather(city: str) -> str:
    weather = {"city": city, "weather_description": f"It is cold and windy in {city} today."}
    return orjson.dumps(weather).decode()


def add_usage(total: dict[str, Any], usage: dict[str, Any]) -> None:
    if not total:
        total.update(usage)
        return
    for count in _COUNTS:
        total[count] += usage[count]
    total["input_tokens_details"]["cached_tokens"] += usage["input_tokens_details"]["cached_tokens"]
    total["output_tokens_details"]["reasoning_tokens"] += usage["output_tokens_details"]["reasoning_tokens"]
