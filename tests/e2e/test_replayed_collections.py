"""A recorded run is replayed without its model: the rollouts are the same, and faults lose none of them."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.path_utils import failures_path_for, manifest_path_for
from scripts.scripted_endpoint import Item, ScriptedEndpoint, function_call, message, tool_outputs, user_text
from tests.support.collecting import CALCULATOR, MODEL, Collector, Key, key_of
from tests.support.commands import NgRun, free_port, run_command
from tests.support.token_rollouts import bundle

REPLAY = "responses_api_models/replay_model/configs/replay_model.yaml"
TASKS, REPEATS = 15, 4
FAULTS = {
    "rate_limited": 0.06,
    "retry_after_s": 0.05,
    "server_error": 0.06,
    "disconnect": 0.06,
    "hang": 0.05,
    "garbage_json": 0.05,
    "slow": 0.06,
    "slow_s": 0.1,
    "empty_output": 0.05,
    "nan_log_probs": 0.05,
}


def calculate(request: dict[str, Any]) -> list[Item]:
    """Plays each repeat (its number is the seed) differently; two of them begin in the same way."""
    repeat, results = request["seed"], tool_outputs(request)
    if not results:
        typed = user_text(request).removeprefix("What is ").removesuffix("?")
        expression = f"{typed} + 1" if repeat == 1 else typed
        return [function_call("calculator", expression=expression) | bundle([1, 2, 3], [10, 11])]
    answer = "I do not know: 0." if repeat == 2 else f"The answer is {json.loads(results[-1])}."
    return [message(f"({repeat}) {answer}") | bundle([1, 2, 3, 10, 11, 4, 5], [12, 13, 14])]


@dataclass(frozen=True)
class Run:
    """The files of a collection."""

    output: Path

    @property
    def rollouts(self) -> dict[Key, dict[str, Any]]:
        records = [json.loads(line) for line in self.output.read_bytes().splitlines()]
        return {key_of(record): record for record in records}

    @property
    def failed(self) -> set[Key]:
        path = failures_path_for(self.output)
        lines = path.read_bytes().splitlines() if path.exists() else []
        return {key_of(json.loads(line)) for line in lines}

    @property
    def ledger(self) -> dict[str, Any]:
        ledger: dict[str, Any] = json.loads(manifest_path_for(self.output).read_text())["ledger"]
        return ledger

    def endings(self, task: int) -> Counter[str]:
        """The last message of each rollout of a task."""
        outputs = [run["response"]["output"] for key, run in self.rollouts.items() if key[0] == task]
        return Counter(output[-1]["content"][0]["text"] for output in outputs)


def question(number: int) -> dict[str, Any]:
    user_message = {"role": "user", "content": f"What is {number} * 7?"}
    return {"responses_create_params": {"input": [user_message]}, "expected_answer": str(number * 7)}


def collect(folder: Path, name: str, model: str, **settings: object) -> Run:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(question(number)) + "\n" for number in range(1, TASKS + 1)))
    given = {
        "config_paths": f"[{CALCULATOR},{model}]",
        "agent_name": "calculator_simple_agent",
        "input_jsonl_fpath": tasks,
        "output_jsonl_fpath": f"{name}.jsonl",
        "num_repeats": REPEATS,
        "hosting": "embedded",
        "retry_backoff_s": 0.05,
        **settings,
    }
    collector = Collector(folder, [f"+{key}={value}" for key, value in given.items()])
    assert collector.wait() in (0, 1), collector.output
    return Run(folder / f"{name}.jsonl")


def without_nan(item: Item) -> Item:
    """The recorded item for one with a NaN; any other item unchanged."""
    log_probs = item.get("generation_log_probs")
    if not log_probs or log_probs[0] is not None:
        return item
    return {**item, "generation_log_probs": [-0.5, *log_probs[1:]]}


def token_report(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_command("ng_token_report", str(run.output), "--json").stdout)
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("recorded")
    with ScriptedEndpoint(calculate) as endpoint:
        run = collect(folder, "recorded", MODEL, num_repeats_add_seed="true", **endpoint.settings)
    assert run.ledger["succeeded"] == TASKS * REPEATS
    assert {rollout["reward"] for rollout in run.rollouts.values()} == {0.0, 1.0}
    found = token_report(run)
    assert (found["rollouts_with_tokens"], found["defects"]) == (TASKS * REPEATS, {})
    yield run


def test_replay_reproduces_the_recorded_rollouts(recorded: Run, tmp_path: Path) -> None:
    replayed = collect(tmp_path, "replayed", REPLAY, replay_rollouts_fpath=recorded.output)
    before, after = recorded.rollouts, replayed.rollouts
    assert {key: run["reward"] for key, run in after.items()} == {
        key: run["reward"] for key, run in before.items()
    }
    for key, rollout in after.items():
        assert rollout["response"]["output"] == before[key]["response"]["output"]
        assert rollout["response"]["usage"] == before[key]["response"]["usage"]


def test_no_rollout_is_lost_with_all_kinds_of_faults(recorded: Run, tmp_path: Path) -> None:
    place = "policy_model.responses_api_models.replay_model.faults"
    faults = {f"{place}.{name}": value for name, value in FAULTS.items()}
    settings = {"replay_rollouts_fpath": recorded.output, "num_repeats_add_seed": "true"}
    run = collect(tmp_path, "faulty", REPLAY, rollout_timeout_s=2, **settings, **faults)
    succeeded = set(run.rollouts)
    assert succeeded | run.failed == set(recorded.rollouts)
    assert not succeeded & run.failed
    ledger = run.ledger
    assert ledger["not_run"] == 0
    assert ledger["retried"] > TASKS * REPEATS / 5  # there were faults
    assert len(succeeded) >= 0.9 * TASKS * REPEATS
    outputs = {key: rollout["response"]["output"] for key, rollout in run.rollouts.items()}
    whole = [key for key, output in outputs.items() if len(output) == 3]  # empty responses end rollouts early
    assert len(whole) >= 0.75 * TASKS * REPEATS
    before, after = recorded.rollouts, run.rollouts
    for key in whole:
        assert [without_nan(item) for item in outputs[key]] == before[key]["response"]["output"]
        assert after[key]["reward"] == before[key]["reward"]
    spoiled = sum(without_nan(item) != item for output in outputs.values() for item in output)
    assert spoiled > 0
    found = token_report(run)["defects"]
    assert {defect: (count["items"], count["values"]) for defect, count in found.items()} == {
        "nan_log_probs": (spoiled, spoiled)
    }


def test_model_server_in_front_of_a_replayed_endpoint_overcomes_its_faults(
    recorded: Run, tmp_path: Path
) -> None:
    port, place = free_port(), "policy_model.responses_api_models.replay_model"
    faults = {"rate_limited": 0.1, "retry_after_s": 0.1, "server_error": 0.03, "disconnect": 0.03}
    settings = {
        "replay_rollouts_fpath": recorded.output,
        f"{place}.port": port,
        **{f"{place}.faults.{name}": value for name, value in faults.items()},
    }
    with NgRun([REPLAY], settings, cwd=tmp_path):
        endpoint = {
            "policy_base_url": f"http://127.0.0.1:{port}/v1",
            "policy_api_key": "none",
            "policy_model_name": "replayed",
        }
        run = collect(tmp_path, "in_front", MODEL, **endpoint)
    assert run.ledger["succeeded"] == TASKS * REPEATS
    for task in range(TASKS):
        assert run.endings(task) == recorded.endings(task)
