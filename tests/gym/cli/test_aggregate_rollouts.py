"""`ng_aggregate_rollouts`: the servers it calls and its output."""

import json
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from tests.gym.cli.conftest import Ended, Ng
from tests.support.commands import NgRun, free_port, run_command
from tests.support.components import SERVER, write_component

OWN = """
    def compute_metrics(self, tasks):
        return {"tasks": len(tasks)}

    def get_key_metrics(self, agent_metrics):
        return {"tasks": agent_metrics["tasks"]}

"""


@pytest.fixture
def shards(ng: Ng) -> str:
    """Two shards of one agent and a file that is not a shard; the argument that names them."""
    for name, task in (("rs0,x", 0), ("rs1", 1)):
        record = {
            "_ng_task_index": task,
            "_ng_rollout_index": 0,
            "agent_ref": {"name": "shop"},
            "reward": task,
        }
        Path(f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    Path("rs1_failures.jsonl").write_text("{}\n")
    return "+input_glob=rs0*.jsonl,rs1*.jsonl"


@pytest.fixture
def no_head() -> str:
    """The argument for a head server that is not running."""
    return f"+head_server.port={free_port()}"


OUTPUT = "+output_jsonl_fpath=out/all.jsonl"


def entry() -> dict[str, Any]:
    (found,) = json.loads(Path("out/all_aggregate_metrics.json").read_text())
    assert isinstance(found, dict)
    return found


def test_without_servers_the_default_metrics_are_shown(ng: Ng, shards: str, no_head: str) -> None:
    done = ng("aggregate_rollouts", shards, OUTPUT, no_head)
    assert (done.code, done.err) == (0, "")
    assert done.out == "\n".join(
        [
            "Shards (2):",
            "  rs0,x.jsonl",
            "  rs1.jsonl",
            "Key metrics of shop:",
            "{",
            '  "mean/reward": 0.5',
            "}",
            "shop: reward 0.50 ± 0.50 (95 % CI, 2 tasks × 1), number of planned rollouts unknown",
            "These are the default metrics, without the environment's own: "
            "no server was available; compute them with ng_aggregate_rollouts '+config_paths=[…]'.",
            "metric       value  95 % CI    median  std     min  max",
            "───────────────────────────────────────────────────────",
            "mean/reward  0.5    0.00–1.00  0.5     0.7071  0    1",
            "rewards  0  ████████████████████████████████████████   50%  1",
            "         1  ████████████████████████████████████████   50%  1",
            "",
            "Rollouts: out/all.jsonl",
            "Aggregate metrics: out/all_aggregate_metrics.json",
            "",
        ]
    )
    assert len(Path("out/all.jsonl").read_text().splitlines()) == 2
    assert "default metrics" in entry()["note"]


def with_own_metrics(folder: Path) -> str:
    return write_component(folder, "shop", SERVER.replace("\n\nRESULT", OWN + "\n\nRESULT"))


def assert_own(done: Ended) -> None:
    assert (done.code, done.err) == (0, "")
    assert '{\n  "tasks": 2\n}' in done.out
    assert entry()["key_metrics"] == {"tasks": 2}
    assert "note" not in entry()


def test_servers_of_the_configuration_are_hosted_for_their_own_metrics(
    ng: Ng, shards: str, no_head: str, tmp_path: Path
) -> None:
    config = with_own_metrics(tmp_path)
    assert_own(ng("aggregate_rollouts", shards, OUTPUT, no_head, f"+config_paths=[{config}]"))


def test_agents_are_checked_against_running_servers(ng: Ng, shards: str, tmp_path: Path) -> None:
    config = with_own_metrics(tmp_path)
    with NgRun([config], {}, cwd=tmp_path) as running:
        head = f"+head_server.port={running.head.port}"
        assert_own(ng("aggregate_rollouts", shards, OUTPUT, head))
    other = write_component(tmp_path, "other")
    with NgRun([other], {}, cwd=tmp_path) as running:
        head = f"+head_server.port={running.head.port}"
        assert_own(
            ng(
                "aggregate_rollouts",
                shards,
                "+output_jsonl_fpath=out/all.jsonl",
                head,
                f"+config_paths=[{config}]",
                "+merge_shards=false",
            )
        )
        done = ng("aggregate_rollouts", shards, OUTPUT, head)
        assert done.code == 0
        assert "'shop'" in entry()["note"]


def test_notices_are_shown(ng: Ng, shards: str, no_head: str) -> None:
    record = json.loads(Path("rs1.jsonl").read_text())
    Path("rs10.jsonl").write_text(json.dumps({**record, "reward": 7}) + "\n")
    ng("aggregate_rollouts", shards, OUTPUT, no_head)
    done = ng("aggregate_rollouts", shards, OUTPUT, no_head)
    assert "renumbered" in done.out
    assert "out/all.jsonl existed already; it was renamed to out/all.jsonl." in done.out


MISTAKES = {
    "no match": (["+input_glob=none*.jsonl", OUTPUT], ["'none*.jsonl'"]),
    "no glob": ([OUTPUT], ["input_glob"]),
    "no output": (["+input_glob=rs*.jsonl"], ["output_jsonl_fpath"]),
    "no rollout": (["+input_glob=rs*.jsonl,bad.jsonl", OUTPUT], ["bad.jsonl:1:"]),
    "misspelt": (["+input_globs=rs*.jsonl", OUTPUT], ["input_glob"]),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_end_with_one_message(ng: Ng, shards: str, no_head: str, kind: str) -> None:
    Path("bad.jsonl").write_text("{}\n")
    arguments, expected = MISTAKES[kind]
    done = ng("aggregate_rollouts", *arguments, no_head)
    assert done.code == 2
    assert "Traceback" not in done.err and all(text in done.err for text in expected)
    assert not Path("out/all_aggregate_metrics.json").exists()


def test_command_is_installed(shards: str, no_head: str) -> None:
    done = run_command("ng_aggregate_rollouts", shards, OUTPUT, no_head, cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (0, "")
    assert "Aggregate metrics: out/all_aggregate_metrics.json" in done.stdout


def write_older(name: str, rewards: dict[str, list[float]]) -> None:
    """A rollouts file from before rollouts had keys: rewards by input."""
    records = [
        {
            "responses_create_params": {"input": text, "seed": n},
            "agent_ref": {"name": "shop"},
            "reward": reward,
        }
        for text, values in rewards.items()
        for n, reward in enumerate(values)
    ]
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_files_without_keys_are_accepted_with_each_input_as_a_task(ng: Ng, no_head: str) -> None:
    write_older("old0.jsonl", {"a": [0, 1], "b": [1, 1]})
    write_older("old1.jsonl", {"b": [0], "c": [1]})
    done = ng("aggregate_rollouts", "+input_glob=old*.jsonl", OUTPUT, no_head)
    assert (done.code, done.err) == (0, "")
    assert "No _ng_task_index in old0.jsonl, old1.jsonl: each distinct input counts as a task" in done.out
    assert "Tasks: 3." in done.out
    merged = [json.loads(line) for line in Path("out/all.jsonl").read_text().splitlines()]
    keys = [(one["_ng_task_index"], one["_ng_rollout_index"]) for one in merged]
    assert keys == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert [one["responses_create_params"]["input"] for one in merged] == ["a", "a", "b", "b", "b", "c"]
    assert entry()["agent_metrics"]["mean/reward"] == pytest.approx(4 / 6)
    assert list(Path(gettempdir()).glob("ng_aggregate_*")) == []


def test_files_with_and_without_keys_are_not_combined(ng: Ng, shards: str, no_head: str) -> None:
    write_older("rs12.jsonl", {"a": [1]})
    done = ng("aggregate_rollouts", shards, OUTPUT, no_head)
    assert done.code == 2
    assert "rs12.jsonl has no _ng_task_index, but rs0,x.jsonl has" in done.err
    assert not Path("out").exists()
