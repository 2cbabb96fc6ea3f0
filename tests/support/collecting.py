"""Collections as processes, their model endpoint, and checks of their output."""

import asyncio
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from aiohttp import web

from nemo_gym.path_utils import failures_path_for, manifest_path_for, materialized_path_for, status_path_for
from scripts.scripted_endpoint import Item, Output, ScriptedEndpoint, message, user_text
from tests.support.commands import wait_until

Key = tuple[int, int]
CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"
MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
LONGEST_S = 180.0
"""The longest that a collection of these tests takes, also on a slow machine."""
_PRELOADED = [
    "nemo_gym.cli.main",
    "nemo_gym.cli.collect_rollouts",
    "omegaconf",
    "resources_servers.calculator.app",
    "responses_api_agents.simple_agent.app",
    "responses_api_models.openai_model.app",
    "tests.support.collecting",
]

Fault = Callable[[], object]
"""Called in the process of a collector before it starts: sets a limit, or makes a system call fail."""
Override = Callable[[int, int], Awaitable[Output | None]]
"""Takes the number in a question and how many requests with it have come; returns the output of the model, or
None for the right answer."""


async def no_override(number: int, times: int) -> None:
    return None


async def slow(number: int, times: int) -> None:
    """Slow enough that a kill comes in the middle."""
    await asyncio.sleep(0.03)


async def hang(number: int, times: int) -> Output | None:
    await asyncio.Event().wait()
    return None


def failing(status: int) -> web.Response:
    return web.Response(status=status, text='{"error": "scripted"}', content_type="application/json")


class Adder:
    """The script of an endpoint that adds one, and counts the requests with each number."""

    def __init__(self, override: Override = no_override) -> None:
        self.override = override
        self.request_counts: Counter[int] = Counter()

    async def __call__(self, request: dict[str, Any]) -> list[Item] | web.Response:
        found = re.match(r"What is (\d+) \+ 1\?", user_text(request))
        assert found is not None
        number = int(found[1])
        self.request_counts[number] += 1
        return await self.override(number, self.request_counts[number]) or [message(f"It is {number + 1}.")]


def question(number: int) -> dict[str, Any]:
    """A row; its task index is the number if the rows are those of 0, 1, 2, …"""
    text = f"What is {number} + 1?"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": text}]},
        "expected_answer": str(number + 1),
    }


class Collector:
    """`ng_collect_rollouts` in its own process and session.

    The process is a fork of one that has the modules loaded, which saves a second of imports.
    """

    def __init__(self, folder: Path, arguments: list[str], fault: Fault | None = None) -> None:
        self.log = folder / f"collector-{time.monotonic_ns()}.log"
        arguments_and_more = (folder, arguments, self.log, fault)
        self.process = _processes().Process(target=_collect, args=arguments_and_more, daemon=True)
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def output(self) -> str:
        """Its standard output and standard error so far."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self.process.is_alive()

    def send(self, number: signal.Signals) -> None:
        if self.is_running:
            with suppress(ProcessLookupError):  # it may end before the signal
                os.kill(self.pid, number)

    def wait(self, timeout_s: float = LONGEST_S) -> int:
        """Wait for its end and return the exit code; kills it and fails if it takes too long."""
        self.process.join(timeout_s)
        code = self.process.exitcode
        self.kill()
        assert code is not None, f"still running after {timeout_s:g} s:\n{self.output}"
        return code

    def kill(self) -> None:
        """Kill it, whatever its state."""
        self.send(signal.SIGKILL)
        self.process.join(LONGEST_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; fails if the process ends before."""
        met = wait_until(lambda: condition() or not self.is_running, LONGEST_S)
        assert met and condition(), self.output


def _processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _collect(folder: Path, arguments: list[str], log: Path, fault: Fault | None) -> None:
    os.setsid()
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from nemo_gym.cli.main import main

    if fault is not None:
        fault()
    sys.argv = ["ng_collect_rollouts", *arguments]
    main()


@dataclass
class CollectionRuns:
    """Successive runs into one output, each checked against the state before it."""

    folder: Path
    endpoint: ScriptedEndpoint
    adder: Adder
    rollouts: int
    settings: Mapping[str, object] = field(default_factory=dict)
    config_paths: tuple[str, ...] = (CALCULATOR, MODEL)
    agent: str = "calculator_simple_agent"

    def __post_init__(self) -> None:
        lines = (json.dumps(question(number)) + "\n" for number in range(self.rollouts))
        self.folder.joinpath("tasks.jsonl").write_text("".join(lines))

    @property
    def output(self) -> Path:
        return self.folder / "results" / "rollouts.jsonl"

    def arguments(self, **settings: object) -> list[str]:
        all_settings: dict[str, object] = {
            "config_paths": f"[{','.join(self.config_paths)}]",
            "agent_name": self.agent,
            "input_jsonl_fpath": "tasks.jsonl",
            "output_jsonl_fpath": self.output.relative_to(self.folder),
            "hosting": "embedded",
            "num_samples_in_parallel": 16,
            "retry_backoff_s": 0.1,
            **self.endpoint.settings,
            **self.settings,
            **settings,
        }
        return [f"+{key}={value}" for key, value in all_settings.items()]

    def start(self, fault: Fault | None = None, **settings: object) -> Collector:
        return Collector(self.folder, self.arguments(**settings), fault)

    def resume(self, fault: Fault | None = None, **settings: object) -> Collector:
        return self.start(fault, resume_from_cache="true", **settings)

    def finish(self, **settings: object) -> Collector:
        """Resume to the end; checks that no recorded rollout is played again and all are recorded."""
        done, counts = self.recorded(), self.adder.request_counts.copy()
        collector = self.resume(**settings)
        code = collector.wait()
        assert code == 0, collector.output
        repeated = {number for number in counts if self.adder.request_counts[number] != counts[number]}
        assert repeated.isdisjoint(done)
        self.check_complete()
        return collector

    def recorded(self) -> set[int]:
        """The task indices of the complete lines in the output."""
        return set(self.recorded_numbers())

    def recorded_numbers(self) -> list[int]:
        """The same for every line, in the order of the file."""
        numbers = []
        for line in self._lines(self.output):
            with suppress(ValueError):
                numbers.append(json.loads(line)["_ng_task_index"])
        return numbers

    def check_complete(self) -> None:
        """Check that every key is recorded exactly once, that every line is right, and the ledger."""
        planned = [key_of(json.loads(line)) for line in self._lines(materialized_path_for(self.output))]
        assert sorted(planned) == [(number, 0) for number in range(self.rollouts)]
        lines = self._lines(self.output)
        assert all(line.endswith(b"\n") for line in lines)
        rollouts = [json.loads(line) for line in lines]
        assert sorted(map(key_of, rollouts)) == sorted(planned)
        for rollout in rollouts:
            text = question(rollout["_ng_task_index"])["responses_create_params"]["input"][0]["content"]
            assert rollout["responses_create_params"]["input"][0]["content"] == text
            assert rollout["reward"] == 1.0
        assert self.check_ledger()["succeeded"] == self.rollouts
        assert self.manifest["state"] == "complete"
        assert not status_path_for(self.output).exists()
        assert not list(self.output.parent.glob(".*")), "a temporary file remains"

    def check_ledger(self) -> dict[str, Any]:
        """The ledger of the manifest; checks that it adds up and matches the files."""
        ledger: dict[str, Any] = self.manifest["ledger"]
        assert ledger["planned"] == self.rollouts
        assert ledger["planned"] == ledger["succeeded"] + sum(ledger["failed"].values()) + ledger["not_run"]
        assert ledger["succeeded"] == len(self._lines(self.output))
        return ledger

    @property
    def manifest(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(manifest_path_for(self.output).read_text())
        return data

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines(failures_path_for(self.output))]

    def failure_of(self, number: int) -> dict[str, Any]:
        """The only record of the rollout with this number in the failures file."""
        [failure] = [one for one in self.failures if one["_ng_task_index"] == number]
        return failure

    @staticmethod
    def _lines(path: Path) -> list[bytes]:
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def key_of(record: Mapping[str, Any]) -> Key:
    return record["_ng_task_index"], record["_ng_rollout_index"]
