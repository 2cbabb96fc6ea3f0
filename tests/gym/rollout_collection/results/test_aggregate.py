"""Shards are merged into one file and one set of metrics."""

import asyncio
import json
import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nemo_gym
from nemo_gym.config.current import global_config_dict
from nemo_gym.config.plain_data import frozen_dictconfig
from nemo_gym.errors import ConfigError, InputError, OutputInUseError
from nemo_gym.metrics import compute_aggregate_metrics
from nemo_gym.path_utils import (
    aggregate_metrics_path_for,
    failures_path_for,
    manifest_path_for,
    materialized_path_for,
    status_path_for,
)
from nemo_gym.rollout_collection.config import RolloutAggregationConfig
from nemo_gym.rollout_collection.recording.output_lock import exclusive
from nemo_gym.rollout_collection.results.aggregate import RolloutAggregationHelper, _expand_input_glob
from nemo_gym.rollout_collection.results.shards import Shards
from tests.support.commands import free_port
from tests.support.components import SERVER, write_component

Record = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and no head server."""
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    monkeypatch.chdir(tmp_path)
    head = {"host": "127.0.0.1", "port": free_port()}
    with global_config_dict(frozen_dictconfig({"head_server": head})):
        yield tmp_path


def rollout(task: int, index: int, reward: float = 1.0, agent: str = "agent", **more: Any) -> Record:
    keys = {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": agent}}
    return {**keys, "reward": reward, **more}


def write_shard(name: str, records: list[Record], end: str = "") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records) + end, encoding="utf-8")


def read(name: str) -> list[Record]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def keys(records: list[Record]) -> list[tuple[int, int]]:
    return [(record["_ng_task_index"], record["_ng_rollout_index"]) for record in records]


def aggregate(input_glob: str, output: str = "all.jsonl", **more: Any) -> Path | None:
    config = RolloutAggregationConfig(input_glob=input_glob, output_jsonl_fpath=output, **more)
    return asyncio.run(RolloutAggregationHelper().run_from_config(config))


def entries(path: Path | None) -> list[Record]:
    assert path is not None
    found: list[Record] = json.loads(path.read_text())
    return found


def test_shards_are_merged_in_the_order_of_the_keys_and_measured() -> None:
    first, second = [rollout(2, 0, 0.5), rollout(0, 1)], [rollout(1, 0), rollout(0, 0, 0.0, text="ü\u2028")]
    write_shard("in/a.jsonl", first)
    write_shard("in/b.jsonl", second)
    path = aggregate("in/*.jsonl", "out/deep/all.jsonl")
    assert path == Path("out/deep/all_aggregate_metrics.json")
    merged = [json.loads(line) for line in Path("out/deep/all.jsonl").read_bytes().splitlines()]
    assert keys(merged) == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert merged == [second[1], first[1], second[0], first[0]]
    (entry,) = entries(path)
    expected = compute_aggregate_metrics(first + second)
    assert entry["agent_metrics"] == expected.agent_metrics
    assert entry["group_level_metrics"] == expected.group_level_metrics


def test_each_agent_has_its_own_metrics() -> None:
    write_shard("a.jsonl", [rollout(0, 0, 1.0, "x"), rollout(1, 0, 0.0, "y")])
    write_shard("b.jsonl", [rollout(2, 0, 0.0, "x")])
    found = {entry["agent_ref"]["name"]: entry["key_metrics"] for entry in entries(aggregate("?.jsonl"))}
    assert {agent: metrics["mean/reward"] for agent, metrics in found.items()} == {"x": 0.5, "y": 0.0}


def test_lines_of_a_shard_are_merged_unchanged() -> None:
    line = (
        '{"_ng_rollout_index":0,"_ng_task_index":0, "agent_ref":{"name":"x"},"n":1.50,"big":' + "9" * 30 + "}"
    )
    Path("a.jsonl").write_bytes(b"\n" + line.encode() + b"\r\n  \n")
    aggregate("a.jsonl")
    assert Path("all.jsonl").read_text() == line + "\n"


def test_without_merging_there_are_only_metrics() -> None:
    write_shard("a.jsonl", [rollout(0, 0)])
    assert aggregate("a.jsonl", merge_shards=False) == Path("all_aggregate_metrics.json")
    assert sorted(path.name for path in Path().iterdir()) == ["a.jsonl", "all_aggregate_metrics.json"]


def test_glob_expands_sorted_within_a_pattern_and_no_path_twice() -> None:
    for name in ("b/2.jsonl", "b/1.jsonl", "a/3.jsonl", "a/deep/er/4.jsonl", "a/x.json"):
        write_shard(name, [])
    assert _expand_input_glob(" b/*.jsonl , a/*.jsonl,b/2.jsonl, ./b/1.jsonl") == [
        "b/1.jsonl",
        "b/2.jsonl",
        "a/3.jsonl",
    ]
    assert _expand_input_glob("a/**/*.jsonl,") == ["a/3.jsonl", "a/deep/er/4.jsonl"]
    assert _expand_input_glob("none*") == _expand_input_glob(" , ") == []


def test_files_without_rollouts_are_left_out() -> None:
    write_shard("a.jsonl", [rollout(0, 0)])
    for name in ("a_materialized_inputs.jsonl", "a_failures.jsonl", "a_reward_profiling.jsonl"):
        Path(name).write_text("no rollout\n")
    for _ in range(2):  # now the glob matches the output too
        assert entries(aggregate("*.jsonl"))[0]["agent_metrics"]["mean/reward"] == 1.0
        assert keys(read("all.jsonl")) == [(0, 0)]


def test_glob_may_match_other_files_of_runs() -> None:
    write_shard("in/a.jsonl", [rollout(0, 0)])
    write_shard("in/b.jsonl", [rollout(1, 0)])
    Path("in/deeper").mkdir()
    for path_for in (
        materialized_path_for,
        failures_path_for,
        manifest_path_for,
        aggregate_metrics_path_for,
        status_path_for,
    ):
        path_for("in/a.jsonl").write_text("no rollout\n")
    for name in (
        "a.jsonl.20250101-000000.bak",
        "a.jsonl.20250101-000000-1.torn",
        "a_manifest.json.20250101-000000.bak",
        ".a.jsonl.abcdef.tmp",
        ".a_materialized_inputs.jsonl.candidate.tmp",
    ):
        write_shard(f"in/{name}", [rollout(7, 7)])
    aggregate("in/*, in/.*", "in/all.jsonl")
    aggregate("in/*, in/.*", "in/all.jsonl")  # the glob matches the output of the first run
    assert keys(read("in/all.jsonl")) == [(0, 0), (1, 0)]


def test_shard_may_have_any_other_name() -> None:
    for number, name in enumerate(("a", "b.txt", ".hidden.jsonl", "c.tmp", "manifest.json")):
        write_shard(f"in/{name}", [rollout(number, 0)])
    aggregate("in/*, in/.hidden*")
    assert len(read("all.jsonl")) == 5


def test_previous_merged_output_is_kept_under_another_name(caplog: pytest.LogCaptureFixture) -> None:
    write_shard("a.jsonl", [rollout(0, 0)])
    Path("all.jsonl").write_text("precious\n")
    with caplog.at_level(logging.INFO, "nemo_gym.rollout_collection"):
        aggregate("a.jsonl")
    (kept,) = Path().glob("all.jsonl.*")
    assert kept.read_text() == "precious\n"
    assert kept.suffix != ".jsonl" and kept.name in caplog.text


def test_output_of_a_running_collection_is_not_replaced() -> None:
    write_shard("shard.jsonl", [rollout(0, 0)])
    write_shard("all.jsonl", [rollout(7, 0)])
    with exclusive(Path("all.jsonl")), pytest.raises(OutputInUseError):
        aggregate("shard.jsonl")
    assert keys(read("all.jsonl")) == [(7, 0)] and len(list(Path().iterdir())) == 2


def test_metrics_of_one_file_can_be_computed_again() -> None:
    write_shard("all.jsonl", [rollout(0, 0)])
    before = Path("all.jsonl").read_bytes()
    assert len(entries(aggregate("all.jsonl", merge_shards=False))) == 1
    assert Path("all.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match=r"all\.jsonl"):
        aggregate("all.jsonl")


def test_glob_that_matches_nothing_is_an_error_that_names_it() -> None:
    Path("folder.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"no rollouts files match input_glob 'fold\*, x/\*\*/\*\.jsonl'"):
        aggregate("fold*, x/**/*.jsonl")
    assert not Path("all.jsonl").exists()


def test_shards_without_rollouts_give_empty_results(caplog: pytest.LogCaptureFixture) -> None:
    write_shard("a.jsonl", [])
    with caplog.at_level(logging.INFO, "nemo_gym.rollout_collection"):
        assert aggregate("a.jsonl") is None
    assert not Path("all.jsonl").exists()
    assert "no rollouts" in caplog.text


GOOD = rollout(0, 0)
BAD_LINES = {
    "not JSON": '{"a": nope}\n',
    "not an object": "[1]\n",
    "no index": json.dumps({"agent_ref": {"name": "x"}, "_ng_task_index": 0}) + "\n",
    "index that is not a number": json.dumps({**GOOD, "_ng_rollout_index": "1"}) + "\n",
    "index that is a bool": json.dumps({**GOOD, "_ng_rollout_index": True}) + "\n",
    "index beyond all measure": json.dumps({**GOOD, "_ng_task_index": 2**70}) + "\n",
    "no agent": json.dumps({key: value for key, value in GOOD.items() if key != "agent_ref"}) + "\n",
    "agent without a name": json.dumps({**GOOD, "agent_ref": {"type": "x"}}) + "\n",
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_line_that_is_not_a_rollout_is_an_error_with_its_position(kind: str) -> None:
    write_shard("a.jsonl", [rollout(1, 0)])
    write_shard("b.jsonl", [GOOD], BAD_LINES[kind])
    Path("all.jsonl").write_text("as it was")
    with pytest.raises(InputError, match=r"^b\.jsonl:2: ") as caught:
        aggregate("a.jsonl,b.jsonl")
    assert ("agent" in str(caught.value)) or "agent" not in kind
    assert Path("all.jsonl").read_text() == "as it was"
    assert not Path("all_aggregate_metrics.json").exists()


def test_torn_last_line_is_an_error_that_says_what_to_do() -> None:
    write_shard("a.jsonl", [GOOD], json.dumps(rollout(1, 0))[:-3])
    with pytest.raises(
        InputError, match=r"a\.jsonl:2: .*incomplete.*output_jsonl_fpath=\"a\.jsonl\" resume_from_cache=True"
    ):
        aggregate("a.jsonl")


def test_complete_last_line_without_a_newline_counts() -> None:
    write_shard("a.jsonl", [GOOD], json.dumps(rollout(1, 0)))
    aggregate("a.jsonl")
    assert keys(read("all.jsonl")) == [(0, 0), (1, 0)]


def test_same_record_in_two_shards_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    write_shard("a.jsonl", [rollout(0, 0, 0.5), rollout(0, 1)])
    other_spelling = dict(reversed(rollout(0, 0, 0.5).items()))
    write_shard("b.jsonl", [other_spelling, rollout(1, 0)])
    with caplog.at_level(logging.INFO, "nemo_gym.rollout_collection"):
        (entry,) = entries(aggregate("?.jsonl"))
    assert keys(read("all.jsonl")) == [(0, 0), (0, 1), (1, 0)]
    assert entry["agent_metrics"]["mean/reward"] == pytest.approx(2.5 / 3)
    assert "not counted again: 1" in caplog.text
    assert "renumbered" not in caplog.text


def test_repeat_runs_are_all_kept_and_numbered_in_the_order_of_the_shards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_shard("b.jsonl", [rollout(0, 1, run="b"), rollout(0, 0, run="b"), rollout(1, 0, run="same")])
    write_shard("a.jsonl", [rollout(0, 0, run="a"), rollout(1, 0, run="same"), rollout(2, 5, run="a")])
    write_shard("c.jsonl", [rollout(0, 0, run="a"), rollout(0, 1, run="c")])
    with caplog.at_level(logging.INFO, "nemo_gym.rollout_collection"):
        path = aggregate("b.jsonl, a.jsonl, c.jsonl")
    merged = read("all.jsonl")
    assert [(*key, record["run"]) for key, record in zip(keys(merged), merged, strict=True)] == [
        (0, 0, "b"),
        (0, 1, "b"),
        (0, 2, "a"),
        (0, 3, "c"),
        (1, 0, "same"),
        (2, 5, "a"),
    ]
    assert len(entries(path)[0]["group_level_metrics"]) == 3
    assert "renumbered" in caplog.text and "Tasks: 1" in caplog.text


def test_more_shards_than_files_may_be_open() -> None:
    for number in range(300):
        write_shard(f"in/{number:03}.jsonl", [rollout(task, number) for task in (2, 1)])
    aggregate("in/*.jsonl")
    assert keys(read("all.jsonl")) == [(task, number) for task in (1, 2) for number in range(300)]


RECORDS = st.builds(rollout, st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 1.0]))


@given(st.lists(st.lists(RECORDS, max_size=6), min_size=1, max_size=4))
def test_every_key_occurs_once_and_no_different_record_is_lost(shards: list[list[Record]]) -> None:
    names = [f"{number}.jsonl" for number in range(len(shards))]
    for name, records in zip(names, shards, strict=True):
        write_shard(name, records)
    with Shards([Path(name) for name in names]) as loaded:
        merged = loaded.load()
        found = [json.loads(one.line) for one in loaded]
        assert keys(found) == [one.key for one in loaded]
    different = {json.dumps(record, sort_keys=True) for records in shards for record in records}
    assert len(found) == len(different)
    assert len(found) + merged.copies == sum(map(len, shards))
    assert keys(found) == sorted(set(keys(found)))
    assert sorted((one["_ng_task_index"], one["reward"]) for one in found) == sorted(
        (one["_ng_task_index"], one["reward"]) for one in map(json.loads, different)
    )


OWN = """
    def compute_metrics(self, tasks):
        return {"sizes": [[one["_ng_rollout_index"] for one in task] for task in tasks]}

"""


@pytest.mark.parametrize("merge_shards", [True, False])
def test_open_servers_compute_their_metrics_with_renumbered_rollouts(
    folder: Path, merge_shards: bool
) -> None:
    environment = write_component(folder, "agent", SERVER.replace("\n\nRESULT", OWN + "\n\nRESULT"))
    write_shard("a.jsonl", [rollout(0, 0, run="a", response={"output": []}), rollout(1, 0)])
    write_shard("b.jsonl", [rollout(0, 0, run="b")])
    config = RolloutAggregationConfig(
        input_glob="?.jsonl", output_jsonl_fpath="all.jsonl", merge_shards=merge_shards
    )

    async def run() -> Path | None:
        async with nemo_gym.open_servers(environment):
            return await RolloutAggregationHelper().run_from_config(config)

    (entry,) = entries(asyncio.run(run()))
    assert entry["agent_metrics"]["sizes"] == [[0, 1], [0]]
    assert "note" not in entry


def test_without_servers_the_file_says_so() -> None:
    write_shard("a.jsonl", [rollout(0, 0)])
    assert "default metrics" in entries(aggregate("a.jsonl"))[0]["note"]


def test_memory_does_not_grow_with_the_transcripts() -> None:
    count, size = 300, 20_000
    transcript = "x" * size
    for name in ("a", "b"):
        write_shard(f"{name}.jsonl", [rollout(task, 0, run=name, text=transcript) for task in range(count)])
    aggregate("?.jsonl", "warm.jsonl")
    tracemalloc.start()
    try:
        aggregate("a.jsonl,b.jsonl")
        assert tracemalloc.get_traced_memory()[1] < count * size / 2
    finally:
        tracemalloc.stop()
    assert len(read("all.jsonl")) == 2 * count


def test_collected_shard_is_not_replaced_by_the_merged_output() -> None:
    write_shard("s0.jsonl", [rollout(0, 0)])
    write_shard("s1.jsonl", [rollout(1, 0)])
    manifest_path_for("s0.jsonl").write_text("{}")
    before = Path("s0.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"s0\.jsonl is one of the shards.*choose another"):
        aggregate("s*.jsonl", output="s0.jsonl")
    assert Path("s0.jsonl").read_bytes() == before


def planned(name: str, **by_agent: int) -> None:
    Path(f"{name}_manifest.json").write_text(json.dumps({"materialized_inputs": {"by_agent": by_agent}}))


def test_rollouts_missing_from_shards_are_reported_if_their_manifests_exist() -> None:
    write_shard("a.jsonl", [rollout(0, 0), rollout(1, 0, 0.0)])
    write_shard("b.jsonl", [rollout(2, 0)])
    planned("a", agent=2)
    assert "coverage" not in entries(aggregate("?.jsonl"))[0]  # the plan of b is not known
    planned("b", agent=3)
    (entry,) = entries(aggregate("?.jsonl"))
    assert (entry["coverage"]["planned"], entry["coverage"]["missing"]) == (5, 2)


def test_repeated_key_in_one_shard_is_refused_with_its_lines() -> None:
    write_shard("a.jsonl", [rollout(0, 0), rollout(1, 0), rollout(0, 0, 0.0), rollout(1, 0)])
    with pytest.raises(InputError) as caught:
        aggregate("a.jsonl")
    message = str(caught.value)
    assert "a.jsonl:3: repeats the key of line 1" in message
    assert "a.jsonl:4: repeats the key of line 2" in message
    assert "skip_bad_lines=True" in message
    assert not Path("all.jsonl").exists()


def test_repeated_key_in_one_shard_counts_once_with_skip_bad_lines() -> None:
    write_shard("a.jsonl", [rollout(0, 0), rollout(1, 0), rollout(0, 0, 0.0), rollout(1, 0)])
    (entry,) = entries(aggregate("a.jsonl", skip_bad_lines=True))
    assert keys(read("all.jsonl")) == [(0, 0), (1, 0)]
    assert entry["agent_metrics"]["mean/reward"] == 1.0  # the first record counts


def test_lines_that_are_not_rollouts_are_skipped_on_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write_shard("a.jsonl", [rollout(0, 0), rollout(1, 0)], end='{"torn": ')
    Path("b.jsonl").write_text("no JSON\n" + json.dumps(rollout(2, 0, 0.0)) + "\n\n[]\n")
    path = aggregate("?.jsonl", skip_bad_lines=True)
    assert keys(read("all.jsonl")) == [(0, 0), (1, 0), (2, 0)]
    assert entries(path)[0]["agent_metrics"]["mean/reward"] == pytest.approx(2 / 3)
    assert "warning: 3 lines skipped:" in caplog.text
    assert all(place in caplog.text for place in ("a.jsonl:3: ", "b.jsonl:1: ", "b.jsonl:4: "))
