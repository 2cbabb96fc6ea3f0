"""Start-up times: of an import, of `--help`, and until the first request reaches a model endpoint.

Each figure is the fastest of several runs; the runs alternate with those they are compared to.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.report import Bar, report
from scripts.scripted_endpoint import Item, ScriptedEndpoint, message

BIN = Path(sys.executable).parent
RUNS = 7
LIBRARIES = (
    "import fastapi, aiohttp, omegaconf\n"
    "from hydra.core.override_parser.overrides_parser import OverridesParser"
)
FIRST_REQUEST = """
import asyncio, sys
import nemo_gym

async def main():
    configs = ["resources_servers/calculator/configs/calculator.yaml",
               "responses_api_models/openai_model/configs/openai_model.yaml"]
    async with nemo_gym.open_servers(configs, sys.argv[1:]) as client:
        row = {"responses_create_params": {"input": "What is 2 + 2?"}, "expected_answer": "4"}
        await client.post(server_name="calculator_simple_agent", url_path="/run", json=row)

asyncio.run(main())
"""


class Stopwatch:
    """Script of an endpoint that records when the first request of a run arrived."""

    def __init__(self) -> None:
        self.seen_s = 0.0

    def __call__(self, request: dict[str, object]) -> list[Item]:
        self.seen_s = self.seen_s or time.perf_counter()
        return [message("4")]


def run_s(command: Sequence[str | Path]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def first_request_s(endpoint: ScriptedEndpoint, watch: Stopwatch) -> float:
    """Seconds from the start of the process to the arrival of the request."""
    watch.seen_s = 0.0
    settings = [f"{key}={value}" for key, value in endpoint.settings.items()]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", FIRST_REQUEST, *settings], check=True)
    return watch.seen_s - start


def main() -> bool:
    watch = Stopwatch()
    times: dict[str, list[float]] = {name: [] for name in ("pass", "import", "help", "libraries", "request")}
    with ScriptedEndpoint(watch) as endpoint:
        for _ in range(RUNS):
            times["pass"].append(run_s([sys.executable, "-c", "pass"]))
            times["import"].append(run_s([sys.executable, "-c", "import nemo_gym"]))
            times["help"].append(run_s([BIN / "ng", "--help"]))
            times["libraries"].append(run_s([sys.executable, "-c", LIBRARIES]))
            times["request"].append(first_request_s(endpoint, watch))
    best = {name: min(values) for name, values in times.items()}
    for name, seconds in best.items():
        print(f"  {name}: {seconds:.3f} s")
    return report(
        "start-up",
        [
            Bar("import nemo_gym, s more than python -c pass", best["import"] - best["pass"], 0.15),
            Bar("ng --help, s", best["help"], 0.3),
            Bar(
                "first request at the endpoint / importing the libraries",
                best["request"] / best["libraries"],
                1.6,
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
