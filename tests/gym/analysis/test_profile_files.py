"""A profile of files equals the profile of data and needs little memory; errors name file and line."""

import json
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nemo_gym.analysis.profile_files import ProfiledRewards, profile_rewards
from nemo_gym.errors import ConfigError, InputError
from nemo_gym.metrics.profile import RewardProfileConfig, RewardProfiler, profile_completion_summary
from nemo_gym.records import BadLines

Record = dict[str, Any]
ADDER, OTHER = {"name": "adder"}, {"name": "other"}


def row(task: int, rollout: int, **fields: Any) -> Record:
    key = {"_ng_task_index": task, "_ng_rollout_index": rollout}
    return {"question": f"q{task}", "agent_ref": ADDER, **fields, **key}


def result(task: int, rollout: int, reward: Any = 1.0, **fields: Any) -> Record:
    return row(task, rollout, reward=reward, **fields)


def lines(records: list[Record | str]) -> str:
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records)


class Files:
    """A run's files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.rollouts = folder / "run.jsonl"
        self.materialized = folder / "run_materialized_inputs.jsonl"
        self.groups = folder / "run_reward_profiling.jsonl"
        self.agents = folder / "run_agent_metrics.json"

    def write(self, rows: list[Any], results: list[Any]) -> None:
        self.materialized.write_text(lines(rows))
        self.rollouts.write_text(lines(results))

    def profile(self, bad_lines: BadLines | None = None, *, partial: bool = False) -> ProfiledRewards:
        config = RewardProfileConfig(
            materialized_inputs_jsonl_fpath=str(self.materialized),
            rollouts_jsonl_fpath=str(self.rollouts),
            allow_partial_rollouts=partial,
        )
        return profile_rewards(config, bad_lines)

    def read(self) -> tuple[list[Record], list[Record]]:
        groups = [json.loads(text) for text in self.groups.read_text().splitlines()]
        return groups, json.loads(self.agents.read_text())

    def assert_refused(self, *expected: str, partial: bool = False) -> None:
        """Profiling fails with one error that contains these texts, and writes nothing."""
        with pytest.raises(ConfigError) as refused:
            self.profile(partial=partial)
        assert all(text in str(refused.value) for text in expected), refused.value
        assert not self.groups.exists() and not self.agents.exists()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_profile_and_agent_metrics_are_written(files: Files) -> None:
    rewards = {0: [1, 1], 1: [0, 1], 2: [0, 0], 3: [0.5, 0.5], 4: [None, None], 5: [1]}
    rows = [row(task, index) for task, values in rewards.items() for index in range(2)]
    results = [
        result(task, index, reward)
        for task, values in reversed(rewards.items())
        for index, reward in enumerate(values)
    ]
    files.write(rows, results)
    done = files.profile(partial=True)
    groups, agents = files.read()
    assert (groups, agents) == RewardProfiler().profile_from_data(rows, results, True)
    assert (done.groups_path, done.agents_path) == (files.groups, files.agents)
    assert done.summary == profile_completion_summary(rows, results)
    assert done.difficulty.counts() == {
        "never_solved": 1,
        "sometimes_solved": 2,
        "always_solved": 2,
        "without_reward": 1,
    }
    (agent,) = done.agents
    assert (agent.tasks, agent.rollouts, agent.metrics) == (6, 11, agents[0])
    assert agent.reward is not None and agent.reward.mean == agents[0]["mean/reward"]
    assert files.agents.read_text() == json.dumps(agents, indent=2) + "\n"


VALUES = (
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([None, "text", "\ud800", 0.0, 1.0])
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "reward": VALUES,
        "solved": VALUES,
        "rollout_id": VALUES,
        "response": st.fixed_dictionaries({"usage": st.dictionaries(st.sampled_from(["tokens"]), VALUES)}),
    },
)
KEYS = st.tuples(st.sampled_from([0, 1, 2, 2**31 - 1]), st.integers(0, 3))


@given(st.lists(KEYS, unique=True, max_size=12), st.data())
def test_profile_of_files_equals_profile_of_data(asked: list[tuple[int, int]], data: st.DataObject) -> None:
    agents = {task: data.draw(st.sampled_from(["a", "b", "c"])) for task, _ in asked}
    refs = st.sampled_from([None, {}, "own"])
    rows = [row(*key, n=place, agent_ref=data.draw(refs)) for place, key in enumerate(asked)]
    for one in rows:
        if one["agent_ref"] == "own":
            one["agent_ref"] = {"name": agents[one["_ng_task_index"]]}
    done = data.draw(st.permutations(asked))[: data.draw(st.integers(0, len(asked)))]
    results = [row(*key, agent_ref={"name": agents[key[0]]}) | data.draw(FIELDS) for key in done]
    assume(not results or any(isinstance(one.get("reward"), int | float) for one in results))
    with TemporaryDirectory() as folder:
        files = Files(Path(folder))
        files.write(rows, results)
        summary = files.profile(partial=True).summary
        expected = RewardProfiler().profile_from_data(rows, results, True)
        assert files.read() == expected
        assert [list(group) for group in files.read()[0]] == [list(group) for group in expected[0]]
    assert summary == profile_completion_summary(rows, results)


def test_profile_without_rows_is_empty(files: Files) -> None:
    files.write([], [])
    assert files.profile().agents == []
    assert files.read() == ([], [])


def test_rows_may_be_written_by_another_program(files: Files) -> None:
    """With the key first, spaces, blank lines and no newline at the end."""
    files.write([], [result(3, 1), result(3, 0)])
    files.materialized.write_text(
        '{ "_ng_rollout_index" : 0, "_ng_task_index": 3, "n": 1e999, "é": 36893488147419103232 }\n\n'
        '  {"_ng_task_index": 3, "_ng_rollout_index": 1}'
    )
    files.profile()
    (group,) = files.read()[0]
    assert group["sample"] == {"n": None, "é": 2**65}


TORN = '{"_ng_task_index": 0, "_ng_roll'


@pytest.mark.parametrize(
    ("rows", "results", "expected"),
    [
        ([row(0, 0), TORN], [result(0, 0)], ["run_materialized_inputs.jsonl:2: not JSON", "skip_bad_lines"]),
        ([row(0, 0), "[1]"], [result(0, 0)], ["run_materialized_inputs.jsonl:2: not a materialized input"]),
        ([row(0, 0), "", row(0, 1), row(0, 0)], [result(0, 0)], ["jsonl:4: repeats planned rollout 0:0 of"]),
        ([row(0, 0)], [result(0, 0), TORN], ["run.jsonl:2: not JSON"]),
        ([row(0, 0)], [result(0, 0), {"reward": 1}], ["run.jsonl:2: not a rollout"]),
        ([row(0, 0)], [result(0, 0), result(0, 0)], ["run.jsonl:2: repeats rollout 0:0 of line 1"]),
        ([row(0, 0)], [result(0, 0, agent_ref=None)], ["run.jsonl:1: has no agent"]),
        (
            [row(0, 0), row(0, 1)],
            [result(0, 1), result(0, 0, agent_ref=OTHER)],
            ["run.jsonl:2: mixed agents: rollout 0:0 is by other, task 0 belongs to adder", "skip_bad_lines"],
        ),
        (
            [row(0, 0, agent_ref=None), row(0, 1, agent_ref=None)],
            [result(0, 1), result(0, 0, agent_ref=OTHER)],
            ["run.jsonl:1: mixed agents: rollout 0:1 is by adder, task 0 belongs to other"],
        ),
        (
            [row(0, 0)],
            [result(0, 0), *(result(2, 12 - index) for index in range(12))],
            [
                "run.jsonl:13: 12 rollouts not planned in ",
                "inputs.jsonl: 2:1 (line 13), 2:2 (line 12), ",
                "2:10 (line 4) and 2 more; give the materialized inputs of the same run",
            ],
        ),
        (
            [row(0, index) for index in range(14)],
            [result(0, 1)],
            ["run.jsonl: 13 of the 14 rollouts", ": 0:0, 0:2, ", ", 0:10 and 3 more;", "+resume_", "+allow_"],
        ),
        ([row(0, 0)], [row(0, 0)], ["run.jsonl: no line has a reward"]),
    ],
)  # fmt: skip
def test_bad_input_is_reported_with_its_position_and_nothing_is_written(
    files: Files, rows: list[Any], results: list[Any], expected: list[str]
) -> None:
    files.write(rows, results)
    files.assert_refused(*expected)


def test_torn_last_line_is_reported_as_torn(files: Files) -> None:
    files.write([row(0, 0)], [result(0, 0)])
    with files.rollouts.open("a") as file:
        file.write(TORN)
    files.assert_refused("run.jsonl:2: the last line is incomplete", "resume_from_cache=true")


def test_bad_lines_can_be_skipped(files: Files) -> None:
    rows = [row(task, index) for task in range(2) for index in range(3)]
    results = [
        result(0, 0, 0.25),
        TORN,
        result(0, 1, 9, agent_ref=OTHER, seen="inf") | {"odd": float("inf")},
        result(0, 0, 9),
        result(1, 0),
    ]
    files.write([rows[0], "x", *rows, rows[1]], results)
    bad_lines = BadLines(are_skipped=True)
    done = files.profile(bad_lines, partial=True)
    assert bad_lines.count == 6
    places = [text.split(": ")[0].rpartition("/")[2] for text in bad_lines.first]
    assert places == [
        "run_materialized_inputs.jsonl:2",
        "run.jsonl:2",
        "run.jsonl:4",
        "run_materialized_inputs.jsonl:3",
        "run_materialized_inputs.jsonl:9",
        "run.jsonl:3",
    ]
    assert done.summary["completed_rollouts"] == 2
    expected = RewardProfiler().profile_from_data(rows, [result(0, 0, 0.25), result(1, 0)], True)
    assert files.read() == expected, "not a trace of the lines left out"


def test_skipped_rollouts_count_as_missing(files: Files) -> None:
    files.write([row(0, 0), row(0, 1)], [result(0, 0), TORN])
    with pytest.raises(InputError, match="1 of the 2 rollouts"):
        files.profile(BadLines(are_skipped=True))


def test_results_without_a_row_are_refused_even_if_partial_is_allowed(files: Files) -> None:
    files.write([row(0, 0)], [result(0, 1)])
    files.assert_refused("run.jsonl:1: 1 rollout not planned in ", partial=True)


def test_results_without_a_row_are_skipped_on_request(files: Files) -> None:
    files.write([row(0, 0)], [result(0, 1), result(0, 0, 0.25)])
    bad_lines = BadLines(are_skipped=True)
    done = files.profile(bad_lines)
    assert done.summary["completed_rollouts"] == 1
    assert "run.jsonl:1: rollout 0:1 is not planned in " in bad_lines.warning_lines()[1]


def test_missing_files_are_reported_with_where_a_run_writes_them(files: Files) -> None:
    files.assert_refused("run.jsonl: no such file", "ng_collect_rollouts wrote")
    files.write([row(0, 0)], [result(0, 0)])
    beside, files.materialized = files.materialized, files.rollouts.with_name("other.jsonl")
    files.assert_refused(
        "other.jsonl: no such file", f"did you mean +materialized_inputs_jsonl_fpath={beside}?"
    )
    beside.unlink()
    files.assert_refused("other.jsonl: no such file", "writes the materialized inputs beside its output")
    files.materialized = files.rollouts
    files.assert_refused("given as both rollouts and materialized inputs")
    files.materialized = files.rollouts.parent
    files.assert_refused("cannot be read: Is a directory")


def test_older_profiles_are_replaced_completely_or_unchanged(files: Files) -> None:
    files.write([row(0, 0)], [result(0, 0)])
    files.groups.write_text("older")
    files.agents.write_text("older")
    files.write([row(0, 0), row(1, 0)], [result(0, 0)])
    with pytest.raises(InputError):
        files.profile()
    assert (files.groups.read_text(), files.agents.read_text()) == ("older", "older")
    files.profile(partial=True)
    assert len(files.read()[0]) == 1
    assert sorted(path.name for path in files.rollouts.parent.iterdir()) == sorted(
        path.name for path in (files.rollouts, files.materialized, files.groups, files.agents)
    )


PROGRAM = """
import resource, signal, sys
from nemo_gym.analysis.profile_files import profile_rewards
from nemo_gym.metrics.profile import RewardProfileConfig
inputs, rollouts, action = sys.argv[1:]
signal.signal(signal.SIGXFSZ, getattr(signal, action))
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
profile_rewards(RewardProfileConfig(materialized_inputs_jsonl_fpath=inputs, rollouts_jsonl_fpath=rollouts))
"""


@pytest.mark.parametrize(
    ("action", "code"), [("SIG_DFL", -signal.SIGXFSZ), ("SIG_IGN", 1)], ids=["killed", "disk full"]
)
def test_failed_write_leaves_the_older_profile(files: Files, action: str, code: int) -> None:
    files.write([row(0, 0, prompt="x" * 400_000)], [result(0, 0)])
    files.groups.write_text("older")
    files.agents.write_text("older")
    command = [sys.executable, "-c", PROGRAM, str(files.materialized), str(files.rollouts), action]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == code, ended
    assert code != 1 or "cannot write beside" in ended.stderr
    assert (files.groups.read_text(), files.agents.read_text()) == ("older", "older")


def test_unwritable_folder_is_one_error(files: Files) -> None:
    files.write([row(0, 0)], [result(0, 0)])
    files.groups.mkdir()
    with pytest.raises(ConfigError, match=r"cannot write beside .*run.jsonl: Is a directory"):
        files.profile()
    assert not files.agents.exists() or json.loads(files.agents.read_text())


def test_memory_grows_with_the_numbers_not_with_the_transcripts(files: Files) -> None:
    tasks, repeats = 1_000, 8

    def peak(size: int) -> int:
        padding = "x" * size
        with files.materialized.open("w") as asked, files.rollouts.open("w") as done:
            for task in range(tasks):
                for index in range(repeats):
                    asked.write(lines([row(task, index, prompt=padding)]))
                    done.write(lines([result(task, index, index % 2, response=padding)]))
        tracemalloc.start()
        try:
            files.profile()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # imports modules and fills caches
    small, large = peak(10), peak(2_000)
    assert large - small < 1_000_000, "of 32 MB more in the files"
    assert small < tasks * repeats * 250 + 2_000_000
