"""The cost that an embedded `openai_model` adds to a call of its endpoint, for small and large responses.

Small: the CPU time of a call whose endpoint is in memory, minus that of a call to a model server that does
nothing. Other load on the machine may double both, so the figure is the best round; medians are printed too.
Large: the time of a call, divided by that of the HTTP client alone with its response parsed as JSON. Both
alternate, the endpoint is another process, and the figure is the median of the ratios of each round.
"""

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Literal

import orjson
import uvloop
from fastapi import Request, Response

from bench.model_endpoint import CHAT
from bench.report import Bar, report
from bench.wire_models import RESPONSE
from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
from nemo_gym.client import ServerClient
from nemo_gym.http import MODEL_ENDPOINT, ClientResponse, request
from nemo_gym.http import Call as SentCall
from nemo_gym.launch.limits import collect_garbage_less
from nemo_gym.openai_utils.endpoint_client import NeMoGymAsyncOpenAI
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig

CONVERSION_BAR_US = 60.0
LARGE_BAR = 1.3
ROUNDS = 500
CALLS = 50
LARGE_ROUNDS = 60

REQUEST: dict[str, Any] = {
    "input": [
        {"role": "system", "content": "You are a helpful assistant with access to a weather service."},
        {"role": "user", "content": "Will I need an umbrella in Paris tomorrow? I leave at nine."},
    ],
    "tools": [
        {
            "type": "function",
            "name": "get_forecast",
            "description": "The forecast for a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
            "strict": True,
        }
    ],
    "temperature": 1.0,
    "max_output_tokens": 2048,
}
HEADERS = {"Authorization": "Bearer key", "Content-Type": "application/json"}

Call = Callable[[], Awaitable[object]]
Api = Literal["responses", "chat_completions"]
ROUTES: dict[Api, str] = {"responses": "responses", "chat_completions": "chat/completions"}


def new_model(base_url: str, upstream: Api) -> OpenAIModel:
    settings = {
        "name": "policy_model",
        "host": "127.0.0.1",
        "port": 0,
        "entrypoint": "app.py",
        "openai_base_url": base_url,
        "openai_api_key": "key",
        "openai_model": "Qwen/Qwen3-8B",
        "upstream_api": upstream,
    }
    return OpenAIModel(config=OpenAIModelConfig.model_validate(settings), server_client=ServerClient())


def call_of(model: SimpleResponsesAPIModel, *, as_json: bool = False) -> Call:
    """A call of a model server in this process; `as_json`: including the parsed response."""
    server = HostedServer("policy_model", model.setup_webserver())
    client = ServerClient(local_servers={"policy_model": server})
    cookies: dict[str, Any] = {}

    async def call() -> object:
        response = await client.post("policy_model", "/v1/responses", json=REQUEST, cookies=cookies)
        assert response.status == 200
        if not cookies:
            cookies.update(response.cookies)
        return await response.json() if as_json else response

    return call


def bare_call(base_url: str, upstream: Api, *, as_json: bool) -> Call:
    """The same request as prepared bytes; the response as bytes or parsed."""
    url = f"{base_url}/{ROUTES[upstream]}"
    sent = orjson.dumps({**REQUEST, "model": "Qwen/Qwen3-8B"})

    async def call() -> object:
        response = await request("POST", url, data=sent, headers=HEADERS, retry=MODEL_ENDPOINT)
        return await response.json() if as_json else await response.read()

    return call


class InMemory(NeMoGymAsyncOpenAI):
    """An endpoint that costs nothing, so that the rest of a call can be measured."""

    def __init__(self, body: bytes) -> None:
        super().__init__("http://127.0.0.1:1/v1", "key")
        self._body = body

    async def _send(self, call: SentCall) -> ClientResponse:
        return ClientResponse(200, (), self._body, method=call.method, url=call.url)


class Prepared(SimpleResponsesAPIModel):
    """A model server that returns a prepared response, to measure the cost of hosting."""

    async def responses(self, request: Request) -> Response:  # type: ignore[override]  # takes no body
        return PREPARED


PREPARED = Response(b"{}", media_type="application/json")


async def cpu_us(call: Call) -> float:
    """CPU time per call in µs."""
    start = time.thread_time_ns()
    for _ in range(CALLS):
        await call()
    return (time.thread_time_ns() - start) / CALLS / 1000


async def wall_ms(call: Call) -> float:
    start = time.perf_counter_ns()
    await call()
    return (time.perf_counter_ns() - start) / 1e6


async def measure_small() -> list[Bar]:
    """The CPU time that `openai_model` adds to a call, without hosting."""
    bodies: dict[Api, bytes] = {
        "responses": orjson.dumps(RESPONSE),
        "chat_completions": orjson.dumps(CHAT),
    }
    models: dict[Api, OpenAIModel] = {api: new_model("http://127.0.0.1:1/v1", api) for api in bodies}
    for upstream, model in models.items():
        model.endpoint = InMemory(bodies[upstream])
    calls: dict[str, Call] = {api: call_of(model) for api, model in models.items()}
    config = models["responses"].config
    calls["hosting"] = call_of(Prepared(config=config, server_client=ServerClient()))
    costs: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            costs[name].append(await cpu_us(call))
    shown = ", ".join(
        f"{name} {min(cost):.1f} µs (median {median(cost):.1f})" for name, cost in costs.items()
    )
    print(f"  2 KB: {shown}")
    return [
        Bar(
            f"conversion and validation of a 2 KB call, {upstream} upstream, µs",
            min(costs[upstream]) - min(costs["hosting"]),
            CONVERSION_BAR_US,
        )
        for upstream in bodies
    ]


async def measure_large(base_url: str, upstream: Api) -> Bar:
    calls = {
        "bytes": bare_call(base_url, upstream, as_json=False),
        "JSON": bare_call(base_url, upstream, as_json=True),
        "openai_model": call_of(new_model(base_url, upstream), as_json=True),
    }
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(LARGE_ROUNDS):
        for name, call in calls.items():
            rounds[name].append(await wall_ms(call))
    costs = {name: median(values[3:]) for name, values in rounds.items()}
    shown = ", ".join(f"{name} {cost:.1f} ms" for name, cost in costs.items())
    over_bytes = costs["openai_model"] / costs["bytes"]
    print(f"  64K tokens, {upstream} upstream: {shown}; {over_bytes:.2f} times the bytes alone")
    ratio = median(ours / alone for ours, alone in zip(rounds["openai_model"], rounds["JSON"], strict=True))
    return Bar(f"64K tokens through openai_model / the call alone, {upstream} upstream", ratio, LARGE_BAR)


async def measure(port: int) -> list[Bar]:
    collect_garbage_less()  # as in the processes that play rollouts
    root = f"http://127.0.0.1:{port}"
    return [
        *await measure_small(),
        await measure_large(f"{root}/large", "responses"),
        await measure_large(f"{root}/large", "chat_completions"),
    ]


def main() -> bool:
    endpoint = subprocess.Popen(
        [sys.executable, "-m", "bench.model_endpoint"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert endpoint.stdout is not None
        return report("model calls", uvloop.run(measure(int(endpoint.stdout.readline()))))
    finally:
        endpoint.terminate()
        endpoint.wait()


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
