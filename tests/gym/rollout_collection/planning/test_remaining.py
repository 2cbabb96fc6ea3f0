"""The remaining work is the plan minus the output minus the rollouts whose attempts are spent."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from nemo_gym.errors import JournalError
from nemo_gym.records import Key, packed
from nemo_gym.rollout_collection.planning.remaining import RemainingWork, remaining_work, whole_plan
from nemo_gym.rollout_collection.recording.recovery import PastFailures


def plan_of(folder: Path, tasks: int) -> Path:
    path = folder / "plan.jsonl"
    rows = (
        {"agent_ref": {"name": f"agent{task % 2}"}, "_ng_task_index": task, "_ng_rollout_index": 0}
        for task in range(tasks)
    )
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return path


def failed(
    task: int, kind: str = "data", attempts: int = 1, **fields: object
) -> tuple[Key, dict[str, object]]:
    record = {"_ng_failure_class": kind, "attempts": attempts, "data_attempts": attempts, **fields}
    return Key(task, 0), record


def work_of(plan: Path, done: list[int], *failures: tuple[Key, dict[str, object]]) -> RemainingWork:
    past = PastFailures()
    for key, record in failures:
        past.take(key, record)
    return remaining_work(plan, {packed(Key(task, 0)) for task in done}, past, max_attempts=3)


def tasks_of(work: RemainingWork) -> list[int]:
    return [rollout.key.task for rollout in work.rollouts()]


def test_done_and_spent_rollouts_are_not_played(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 6)
    terminal = failed(4, "hopeless", _ng_failure_terminal=True)
    outage = failed(5, "infrastructure", attempts=9, data_attempts=0)
    work = work_of(plan, [0, 1], failed(2, attempts=3), failed(3, attempts=2), terminal, outage)
    assert tasks_of(work) == [3, 5]
    assert (work.planned, work.num_done, work.num_skipped, work.to_run) == (6, 2, 2, 2)
    assert work.skipped_by_kind == {"data": 1, "hopeless": 1}
    assert work.skipped_by_agent == {"agent0": 2} and work.to_run_by_agent == {"agent1": 2}


def test_data_attempts_before_an_outage_in_the_same_run_count(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 3)
    outages = [failed(task, "infrastructure", attempts=6, data_attempts=task) for task in range(3)]
    work = work_of(plan, [], *outages)
    assert [rollout.data_attempts_left for rollout in work.rollouts()] == [2, 2, 1]
    work = work_of(plan, [], *outages, *outages)
    assert tasks_of(work) == [0, 1] and work.skipped_by_kind == {"data": 1}


def test_remaining_work_never_changes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 3)
    for work in (whole_plan(plan, {"agent0": 2, "agent1": 1}, 3), work_of(plan, [0], failed(1, attempts=3))):
        for counts in (
            work.to_run_by_agent,
            work.skipped,
            work.skipped_by_kind,
            work.skipped_by_agent,
            work.data_attempts,
            work.earlier_attempts,
        ):
            with pytest.raises(TypeError):
                counts["agent0"] = 9  # type: ignore[index]
        with pytest.raises(FrozenInstanceError):
            work.planned = 9  # type: ignore[misc]
        assert isinstance(work.done, frozenset)


def test_remaining_work_does_not_follow_later_changes_of_its_sources(tmp_path: Path) -> None:
    done, past = {packed(Key(0, 0))}, PastFailures()
    work = remaining_work(plan_of(tmp_path, 3), done, past, 3)
    done.add(packed(Key(1, 0)))
    past.data_attempts[packed(Key(2, 0))] = 3
    assert tasks_of(work) == [1, 2]
    assert [one.data_attempts_left for one in work.rollouts()] == [2, 2]


def test_all_rollouts_of_a_new_plan_remain(tmp_path: Path) -> None:
    work = whole_plan(plan_of(tmp_path, 3), {"agent0": 2, "agent1": 1}, 3)
    assert (tasks_of(work), work.planned, work.to_run, work.num_done) == ([0, 1, 2], 3, 3, 0)


def test_rollout_has_the_remaining_attempts_of_earlier_runs(tmp_path: Path) -> None:
    work = work_of(plan_of(tmp_path, 3), [], failed(1), failed(2, attempts=2))
    rollouts = list(work.rollouts())
    assert [one.data_attempts_left for one in rollouts] == [2, 2, 1]
    assert [one.earlier_attempts for one in rollouts] == [0, 1, 2]


def test_success_in_the_output_outweighs_earlier_failures(tmp_path: Path) -> None:
    work = work_of(plan_of(tmp_path, 2), [0], failed(0, attempts=5))
    assert tasks_of(work) == [1] and work.num_skipped == 0


def test_rollouts_outside_the_plan_are_counted(tmp_path: Path) -> None:
    work = work_of(plan_of(tmp_path, 2), [0, 7, 8])
    assert work.not_planned == 2 and work.num_done == 1 and tasks_of(work) == [1]


@pytest.mark.parametrize("line", ["torn", "[]", '{"_ng_task_index":0,"_ng_rollout_index":0}'])
def test_plan_that_cannot_be_read_is_an_error_that_says_what_to_do(tmp_path: Path, line: str) -> None:
    plan = tmp_path / "plan.jsonl"
    plan.write_text(line + "\n")
    with pytest.raises(
        JournalError, match=r"plan\.jsonl: a line .*; to start over, run again without \+resume_from_cache"
    ):
        work_of(plan, [])
