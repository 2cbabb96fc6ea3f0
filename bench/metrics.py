"""Metrics of a million rollouts, compared with only parsing their lines with orjson.

Both are processes that read the same file, in alternation. The whole command is timed, including its start.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import orjson

from bench.report import Bar, report

BIN = Path(sys.executable).parent
ROLLOUTS = 1_000_000
REPEATS = 8
LINE_BYTES = 1500
ROUNDS = 3
TIME_BAR = 2.5
MEMORY_BAR_MB = 600.0

PARSE = """
import sys, time, orjson
started = time.perf_counter()
with open(sys.argv[1], "rb", 1 << 18) as file:
    for line in file:
        orjson.loads(line)
print(time.perf_counter() - started)
"""
AGGREGATE = """
import os, resource, subprocess, sys, time
started = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - started if code == 0 else "failed", usage.ru_maxrss / 1024)
"""


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        rollouts = Path(folder, "rollouts.jsonl")
        write_rollouts(rollouts, ROLLOUTS)
        rounds = [measure_round(rollouts) for _ in range(ROUNDS)]
    ratio = median(one.aggregate_s / one.parse_s for one in rounds)
    memory_mb = max(one.memory_mb for one in rounds)
    return report(
        f"Metrics of {ROLLOUTS} rollouts of {LINE_BYTES} bytes, 10 numeric fields",
        [
            Bar("time of ng_aggregate_rollouts / orjson.loads of all lines", ratio, TIME_BAR),
            Bar("peak memory of a process, MB", memory_mb, MEMORY_BAR_MB),
        ],
    )


class Round(NamedTuple):
    parse_s: float
    aggregate_s: float
    memory_mb: float


def measure_round(rollouts: Path) -> Round:
    (parse_s,) = _numbers([sys.executable, "-c", PARSE, str(rollouts)])
    output = rollouts.with_name("all.jsonl")
    command = [
        str(BIN / "ng_aggregate_rollouts"),
        f"+input_glob={rollouts}",
        f"+output_jsonl_fpath={output}",
        "+merge_shards=false",
        "+head_server.port=9",
    ]
    aggregate_s, memory_mb = _numbers([sys.executable, "-c", AGGREGATE, *command])
    return Round(parse_s, aggregate_s, memory_mb)


def _numbers(command: Sequence[str]) -> list[float]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def write_rollouts(path: Path, count: int) -> None:
    """Write several rollouts per task, each with seven numbers of the verifier and three token counts."""
    chance = Random(1)
    text = "The answer follows from the question, step by step. " * 40
    with path.open("wb", 1 << 20) as file:
        for index in range(count):
            task, rollout = divmod(index, REPEATS)
            tokens = chance.randrange(10, 2000)
            message = {"type": "message", "role": "assistant", "content": ""}
            record = {
                "responses_create_params": {"input": [{"role": "user", "content": text[:300]}]},
                "response": {
                    "id": f"resp_{index}",
                    "output": [message],
                    "usage": {"input_tokens": 300, "output_tokens": tokens, "total_tokens": 300 + tokens},
                },
                "reward": float(chance.random() < 0.6),
                "is_correct": chance.random() < 0.5,
                "steps": chance.randrange(9),
                "similarity": chance.random(),
                "score": chance.gauss(0, 1),
                "latency_s": chance.expovariate(1),
                "percent": 100 * chance.random(),
                "_ng_task_index": task,
                "_ng_rollout_index": rollout,
                "agent_ref": {"name": "agent"},
            }
            missing = LINE_BYTES - 1 - len(orjson.dumps(record))
            message["content"] = text[:missing]
            file.write(orjson.dumps(record) + b"\n")


if __name__ == "__main__":
    sys.exit(not main())
