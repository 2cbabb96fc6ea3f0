"""The CPU time of an embedded rollout, compared with its two HTTP calls without a framework (`bench.floor`).

The endpoint is a separate process, so its CPU time is not counted. Floor and servers alternate in one
process, and each round gives one ratio, so that other load on the machine affects both.
"""

import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import BinaryIO, NamedTuple

import aiohttp
import orjson
import uvloop

from bench.floor import MODEL, play_floor
from bench.report import Bar, report
from nemo_gym.client import ServerClient
from nemo_gym.config import load_config, overrides_from
from nemo_gym.launch import host_embedded
from nemo_gym.server_utils import raise_for_status

ENVIRONMENT = Path("resources_servers/example_single_tool_call")
CONFIGS = [
    ENVIRONMENT / "configs/example_single_tool_call.yaml",
    Path("responses_api_models/openai_model/configs/openai_model.yaml"),
]
AGENT = "example_single_tool_call_simple_agent"
API_KEY = "no-key"
CONCURRENCY = 64
ROLLOUTS = 400
"""Per round: few, so that the load on the machine is the same for floor and servers."""
ROUNDS = 31
BAR = 2.5

Play = Callable[[bytes], Awaitable[bytes]]
"""Plays one row; returns the line to write."""


class EndpointProcess(NamedTuple):
    """The endpoint of `bench.endpoint_process`."""

    base_url: str
    pid: int


@contextmanager
def endpoint_process(delay_ms: float = 0.0) -> Iterator[EndpointProcess]:
    """Run the endpoint in a process; it responds to each request after `delay_ms`."""
    command = [sys.executable, "-m", "bench.endpoint_process", str(delay_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield EndpointProcess(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", process.pid)
    finally:
        process.terminate()
        process.communicate()


@asynccontextmanager
async def floor_player(base_url: str) -> AsyncIterator[Play]:
    """The two HTTP calls without a framework."""
    url = f"{base_url}/responses"
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield lambda row: play_floor(session, url, headers, row)


@asynccontextmanager
async def embedded_player(base_url: str) -> AsyncIterator[Play]:
    """The agent's `/run`, with all servers in this process."""
    settings = {"policy_base_url": base_url, "policy_api_key": API_KEY, "policy_model_name": MODEL}
    async with host_embedded(load_config(CONFIGS, overrides_from(settings))) as client:
        yield lambda row: play_run(client, row)


async def play_run(client: ServerClient, row: bytes) -> bytes:
    response = await client.post(server_name=AGENT, url_path="/run", json=orjson.Fragment(row))
    await raise_for_status(response)
    return await response.read()


async def play_all(play: Play, rows: Iterator[bytes], file: BinaryIO, *, concurrency: int) -> None:
    """Play every row once, at most `concurrency` at a time; write one line per row."""

    async def worker() -> None:
        for row in rows:  # shared iterator: each row goes to one worker
            file.write(await play(row) + b"\n")

    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(worker())


async def round_us(play: Play, rows: list[bytes], path: Path) -> float:
    """CPU time per rollout in microseconds."""
    gc.collect()
    with path.open("wb") as file:
        start = time.process_time()
        await play_all(play, iter(rows), file, concurrency=CONCURRENCY)
        file.flush()
        return (time.process_time() - start) / len(rows) * 1e6


def first_row() -> bytes:
    with (ENVIRONMENT / "data/example.jsonl").open("rb") as file:
        return file.readline().rstrip()


async def measure(base_url: str, folder: Path) -> list[Bar]:
    rows = [first_row()] * ROLLOUTS
    floors, embedded = [], []
    async with floor_player(base_url) as play_floor_row, embedded_player(base_url) as play_embedded:
        for _ in range(ROUNDS + 1):
            floors.append(await round_us(play_floor_row, rows, folder / "floor.jsonl"))
            embedded.append(await round_us(play_embedded, rows, folder / "embedded.jsonl"))
    assert_same_lines(folder / "floor.jsonl", folder / "embedded.jsonl")
    floors, embedded = floors[1:], embedded[1:]  # the first round opens the connections
    print(f"  floor: median {median(floors):.0f} µs of CPU per rollout, best {min(floors):.0f} µs")
    print(f"  embedded: median {median(embedded):.0f} µs of CPU per rollout, best {min(embedded):.0f} µs")
    ratio = median(ours / floor for ours, floor in zip(embedded, floors, strict=True))
    return [Bar("CPU of an embedded rollout / its two HTTP calls without a framework", ratio, BAR)]


def assert_same_lines(floor: Path, embedded: Path) -> None:
    """Check that both wrote the same rollouts, so that the comparison is fair."""
    expected = {orjson.dumps(orjson.loads(line), option=orjson.OPT_SORT_KEYS) for line in floor.open("rb")}
    written = {orjson.dumps(orjson.loads(line), option=orjson.OPT_SORT_KEYS) for line in embedded.open("rb")}
    assert expected == written, "the floor and the servers wrote different lines"


def main() -> bool:
    with endpoint_process() as endpoint, tempfile.TemporaryDirectory() as folder:
        return report("rollouts", uvloop.run(measure(endpoint.base_url, Path(folder))))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
