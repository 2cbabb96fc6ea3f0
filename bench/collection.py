"""The cost of a collection: CPU, throughput, memory, resume. `python -m bench.collection [section …]`.

Every run is a separate process: `ng_collect_rollouts` as a user starts it, or the floor (`bench.floor`). The
floor makes the same two HTTP calls per rollout and writes the same line. The cost of starting a process is
measured and subtracted. Floor and collector alternate, so that other load on the machine affects both.
Bars in seconds are not scaled to the machine; the time of the floor on the same machine is printed with them.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import BinaryIO

import orjson
import uvloop

from bench.calls import cpu_s
from bench.floor import MODEL
from bench.report import Bar, report
from bench.rollouts import (
    AGENT,
    API_KEY,
    CONFIGS,
    EndpointProcess,
    endpoint_process,
    first_row,
    floor_player,
    play_all,
)
from nemo_gym.launch.limits import raise_file_limit
from tests.support.commands import NgRun

BIN = Path(sys.executable).parent
FEW, MANY = 2_000, 200_000
FLOOR_US = 250.0
"""CPU time per rollout of the floor on an idle machine."""


@dataclass(frozen=True)
class Usage:
    """Resources used by a process and its child processes."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def run(command: list[str]) -> Usage:
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(output.read().decode())
    return Usage(used.ru_utime + used.ru_stime, time.perf_counter() - started, used.ru_maxrss / 1024)


@dataclass(frozen=True)
class Bench:
    """The folder and the endpoint of one section."""

    folder: Path
    endpoint: EndpointProcess

    @property
    def base_url(self) -> str:
        return self.endpoint.base_url

    def rows(self, number: int) -> Path:
        """An input file with this number of different rows."""
        path = self.folder / f"rows_{number}.jsonl"
        if not path.exists():
            row = orjson.loads(first_row())
            with path.open("wb") as file:
                file.writelines(orjson.dumps({**row, "id": index}) + b"\n" for index in range(number))
        return path

    def collect(self, number: int, *arguments: str, served: bool = False) -> Usage:
        configs = "" if served else f"+config_paths=[{','.join(map(str, CONFIGS))}]"
        settings = [] if served else [f"+policy_base_url={self.base_url}", f"+policy_api_key={API_KEY}"]
        return run(
            [
                str(BIN / "ng_collect_rollouts"),
                *filter(None, [configs]),
                *(settings if served else [*settings, f"+policy_model_name={MODEL}", "+hosting=embedded"]),
                f"+agent_name={AGENT}",
                f"+input_jsonl_fpath={self.rows(number)}",
                f"+output_jsonl_fpath={self.folder / 'out.jsonl'}",
                *arguments,
            ]
        )

    def floor(self, number: int, concurrency: int = 64) -> Usage:
        output = self.folder / "floor_out.jsonl"
        options = [self.base_url, str(self.rows(number)), str(output), str(concurrency)]
        return run([sys.executable, "-m", "bench.collection", "--floor", *options])


@contextmanager
def new_bench(delay_ms: float = 0.0) -> Iterator[Bench]:
    with endpoint_process(delay_ms) as endpoint, tempfile.TemporaryDirectory() as folder:
        yield Bench(Path(folder), endpoint)


def each_us(measure: Callable[[int], Usage], number: int) -> float:
    """CPU time per rollout in microseconds, without the start of the process."""
    return (measure(number).cpu_s - measure(10).cpu_s) / (number - 10) * 1e6


def rate_of(measure: Callable[[int], Usage], number: int = 40 * 1024) -> float:
    """Rollouts per second, without the start, with an endpoint that takes one second per rollout."""
    return number / (measure(number).wall_s - measure(10).wall_s + 1.0)


def ratios(bench: Bench, number: int, *arguments: str, rounds: int = 5) -> list[float]:
    """CPU per rollout of the collector divided by that of the floor, for each round."""
    found = []
    for _ in range(rounds):
        floor = each_us(bench.floor, number)
        ours = each_us(lambda n: bench.collect(n, *arguments), number)
        print(f"  floor {floor:.0f} µs, collector {ours:.0f} µs of CPU per rollout", flush=True)
        found.append(ours / floor)
    return found


def embedded() -> list[Bar]:
    with new_bench() as bench:
        ratio = median(ratios(bench, 8000, "+num_samples_in_parallel=64", rounds=7))
    return [Bar("embedded, 64 in flight: CPU per rollout / floor", ratio, 2.5)]


def served() -> list[Bar]:
    with new_bench() as bench:
        settings = {"policy_base_url": bench.base_url, "policy_api_key": API_KEY, "policy_model_name": MODEL}
        with NgRun(list(map(str, CONFIGS)), settings) as fleet:
            pids = [fleet.process.pid, *(fleet.pid_of(name) for name in (AGENT, "policy_model", AGENT[:24]))]
            head = f"+head_server.port={fleet.head.port}"

            def measure(number: int) -> Usage:
                before = sum(map(cpu_s, pids))
                usage = bench.collect(number, "+num_samples_in_parallel=64", head, served=True)
                return Usage(usage.cpu_s + sum(map(cpu_s, pids)) - before, usage.wall_s, usage.peak_mb)

            measure(200)
            found = [each_us(measure, 2000) / each_us(bench.floor, 2000) for _ in range(3)]
    return [Bar("ng_run, 64 in flight: CPU per rollout over all processes / floor", median(found), 20.0)]


def workers() -> list[Bar]:
    with new_bench() as bench:
        two = ["+executor=processes", "+num_workers=2", "+num_samples_in_parallel=128"]
        found, busy = [], []
        for _ in range(3):
            single = each_us(lambda n: bench.collect(n, "+num_samples_in_parallel=128"), 8000)
            start, before = bench.collect(10, *two), cpu_s(bench.endpoint.pid)
            whole, after = bench.collect(8000, *two), cpu_s(bench.endpoint.pid)
            cpu, wall = whole.cpu_s - start.cpu_s, whole.wall_s - start.wall_s
            each, cores = cpu / 7990 * 1e6, (cpu + after - before) / wall
            found.append(each / single)
            busy.append(cores)
            print(f"  one process {single:.0f} µs, two workers {each:.0f} µs, {cores:.2f} cores busy")
    return [
        Bar("two workers: CPU per rollout / one process", median(found), 1.25),
        Bar("two workers: idle cores of two, while the endpoint runs too", 2 - median(busy), 0.3),
    ]


def concurrency() -> list[Bar]:
    raise_file_limit()
    with new_bench(500) as bench:
        floor = rate_of(lambda n: bench.floor(n, 1024))
        single = rate_of(lambda n: bench.collect(n, "+num_samples_in_parallel=1024"))
        two = ["+executor=processes", "+num_workers=2", "+num_samples_in_parallel=1024"]
        double = rate_of(lambda n: bench.collect(n, *two))
        print(
            f"  1024 in flight, 500 ms: {single:.0f} rollouts/s of 1024, with two workers {double:.0f}; ",
            end="",
        )
        print(f"floor {floor:.0f}", flush=True)
    with new_bench(2500) as slow, new_bench() as quick:
        found = []
        for _ in range(3):
            few = each_us(lambda n: quick.collect(n, "+num_samples_in_parallel=64"), 16384)
            many = each_us(lambda n: slow.collect(n, "+num_samples_in_parallel=8192"), 16384)
            print(f"  64 in flight {few:.0f} µs, 8192 in flight {many:.0f} µs of CPU per rollout", flush=True)
            found.append(many / few)
    return [
        Bar("1024 in flight, endpoint takes 500 ms: ideal / rollouts per second", 1024 / single, 1 / 0.85),
        Bar("the same with two workers", 1024 / double, 1 / 0.85),
        Bar("CPU per rollout at 8192 in flight / at 64", median(found), 1.5),
    ]


def size() -> list[Bar]:
    """Memory and resume at 200,000 rollouts."""
    with new_bench() as bench:
        small = bench.collect(FEW)
        small_again = bench.collect(FEW, "+resume_from_cache=true")
        big = bench.collect(MANY)
        print(
            f"  {FEW}: {small.peak_mb:.0f} MB; {MANY}: {big.peak_mb:.0f} MB, {big.wall_s:.0f} s", flush=True
        )
        again = bench.collect(MANY, "+resume_from_cache=true")
        slowness = each_us(bench.floor, 5000) / FLOOR_US
        print(f"  resume: {small_again.peak_mb:.0f} and {again.peak_mb:.0f} MB, {again.wall_s:.1f} s", end="")
        print(f"; {again.wall_s / slowness:.1f} s on a machine whose floor takes {FLOOR_US:.0f} µs")
    return [
        Bar("peak MB at 200,000 rollouts minus peak MB at 2,000", big.peak_mb - small.peak_mb, 80),
        Bar("resume of 200,000 lines, s", again.wall_s, 5.0),
        Bar("peak MB of that resume minus peak MB of a run of 2,000", again.peak_mb - small.peak_mb, 80),
    ]


def linear() -> list[Bar]:
    with new_bench() as bench:
        few = ratios(bench, 10_000, rounds=3)
        many = ratios(bench, 100_000, rounds=1)
    return [Bar("CPU per rollout at 100,000 / at 10,000", median(many) / median(few), 1.15)]


async def _floor(base_url: str, lines: BinaryIO, file: BinaryIO, concurrency: int) -> None:
    async with floor_player(base_url) as play:
        await play_all(play, iter(lines), file, concurrency=concurrency)


SECTIONS = {
    "embedded": embedded,
    "served": served,
    "workers": workers,
    "concurrency": concurrency,
    "size": size,
    "linear": linear,
}


def main(names: list[str] | None = None) -> bool:
    results = [report(f"collection: {name}", SECTIONS[name]()) for name in names or SECTIONS]
    return all(results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--floor"]:
        base_url, rows, output, concurrency_text = sys.argv[2:]
        with open(rows, "rb") as lines, open(output, "wb") as file:
            uvloop.run(_floor(base_url, lines, file, int(concurrency_text)))
    else:
        sys.exit(0 if main(sys.argv[1:]) else 1)
