"""The CPU time of one `client.post`: in this process, over HTTP, and plain aiohttp to plain FastAPI.

Over HTTP, the CPU times of both sides are added. The three alternate in one run, so that other load on the
machine affects all of them. The figure is the best round of each.
"""

import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import uvloop

from bench.report import Bar, report
from nemo_gym.client import ServerClient
from nemo_gym.config import assign_ports, load_config
from nemo_gym.launch import host_embedded
from nemo_gym.launch.fleet import FleetConfig, run_fleet
from nemo_gym.server_utils import get_response_json

COMPONENTS = Path(__file__).parent / "components"
CONFIG = "resources_servers/bench_echo/configs/bench_echo.yaml"
BODY = {"text": "hello there", "number": 7}
ROUNDS = 7

Call = Callable[[], Awaitable[object]]


def cpu_s(pid: int) -> float:
    """The user and system time that a process has used so far."""
    file = Path(f"/proc/{pid}/stat")
    if not file.exists():  # macOS
        ps = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True)
        return sum(float(part) * 60**power for power, part in enumerate(reversed(ps.stdout.split(":"))))
    fields = file.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cost_us(call: Call, times: int, server_pid: int | None = None) -> float:
    """CPU time per call in microseconds, including the server's."""
    other = cpu_s(server_pid) if server_pid is not None else 0.0
    own = time.process_time()
    for _ in range(times):
        await call()
    spent = time.process_time() - own
    if server_pid is not None:
        spent += cpu_s(server_pid) - other
    return spent / times * 1e6


def calls_of(client: ServerClient) -> Call:
    """A call that always uses the same session, like the calls of a rollout."""
    cookies: dict[str, object] = {}

    async def call() -> object:
        response = await client.post("bench_echo", "/echo", json=BODY, cookies=cookies)
        cookies.update(response.cookies)
        return await get_response_json(response)

    return call


async def measure(plain_port: int, plain_pid: int) -> list[Bar]:
    config = assign_ports(load_config([CONFIG]))
    url = f"http://127.0.0.1:{plain_port}/echo"
    rounds: dict[str, list[float]] = {"in process": [], "over HTTP": [], "plain HTTP": []}
    async with (
        run_fleet(config, FleetConfig(), lambda server, line: None) as fleet,
        host_embedded(config) as embedded,
        aiohttp.ClientSession() as session,
    ):
        await fleet.start()
        served = calls_of(ServerClient(config.head_server, config.values))
        local = calls_of(embedded)

        async def plain() -> object:
            async with session.post(url, json=BODY) as response:
                return await response.json()

        for _ in range(ROUNDS + 1):
            rounds["in process"].append(await cost_us(local, 5000))
            rounds["over HTTP"].append(await cost_us(served, 1000, fleet.processes[0].pid))
            rounds["plain HTTP"].append(await cost_us(plain, 1000, plain_pid))
    costs = {name: min(values[1:]) for name, values in rounds.items()}
    for name, cost in costs.items():
        print(f"  {name}: {cost:.1f} µs of CPU per call")
    return [
        Bar("in-process call, µs of CPU", costs["in process"], 30.0),
        Bar("in-process call / the same over HTTP", costs["in process"] / costs["over HTTP"], 1 / 15),
        Bar(
            "call over HTTP with sessions / plain aiohttp to plain FastAPI",
            costs["over HTTP"] / costs["plain HTTP"],
            1.25,
        ),
    ]


def main() -> bool:
    os.environ["NEMO_GYM_EXTRA_ROOTS"] = str(COMPONENTS)
    plain = subprocess.Popen([sys.executable, "-m", "bench.plain_server"], stdout=subprocess.PIPE, text=True)
    try:
        assert plain.stdout is not None
        port = int(plain.stdout.readline())
        return report("calls", uvloop.run(measure(port, plain.pid)))
    finally:
        plain.terminate()
        plain.wait()


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
