"""Comparison of two runs: whether their tasks are the same, and the prompts of tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym.analysis.comparison import compare_runs
from tests.gym.analysis.two_runs import Rollouts, both, records, write


def inputs(path: Path, questions: Sequence[str], **others: Any) -> None:
    """Writes the materialized inputs of a run, two rollouts per task, with a seed."""
    write(
        path.with_name(f"{path.stem}_materialized_inputs.jsonl"),
        (
            {
                "responses_create_params": {"input": question, "seed": rollout} | others.get("params", {}),
                "agent_ref": {"name": others.get("agent", "shop")},
                "answer": others.get("answers", "same"),
                "_ng_task_index": task,
                "_ng_rollout_index": rollout,
            }
            for task, question in enumerate(questions)
            for rollout in range(2)
        ),
    )


def test_runs_of_one_input_are_the_same_tasks_with_any_settings(a: Path, b: Path) -> None:
    both(a, b)
    inputs(a, ["p", "q", "r", "s"], params={"temperature": 0.2})
    inputs(b, ["p", "q", "r", "s"], params={"temperature": 1.0, "model": "new"}, agent="other")
    found = compare_runs(a, b)
    assert (found.same_tasks.checked, found.same_tasks.basis) == (4, "materialized inputs")
    assert (found.same_tasks.different_count, found.warnings) == (0, [])


def test_different_input_is_detected(a: Path, b: Path) -> None:
    both(a, b)
    inputs(a, ["p", "q", "r", "s"])
    inputs(b, ["p", "r", "q", "s"], answers="other")
    write(b.with_name("c.jsonl"), [])
    found = compare_runs(a, b)
    assert found.same_tasks.first_different == (0, 1, 2, 3)
    assert found.warnings == [
        "4 of 4 shared tasks are not the same task in both runs: 0, 1, 2, 3; compare runs of the same input"
    ]
    assert found.as_data()["warnings"] == found.warnings


def test_different_prompt_for_the_same_rows_is_reported(a: Path, b: Path) -> None:
    both(a, b)
    inputs(a, ["p", "q", "r", "s"])
    inputs(b, ["p", "q!", "r!", "s"])
    (warning,) = compare_runs(a, b).warnings
    assert warning.startswith(
        "2 of 4 shared tasks have a different prompt in B but are otherwise the same: 1, 2; unless"
    )


def prompted(questions: Sequence[str]) -> Rollouts:
    return {
        task: [{"reward": task % 2, "responses_create_params": {"input": question}}]
        for task, question in enumerate(questions)
    }


def test_without_materialized_inputs_the_prompts_of_some_rollouts_are_compared(a: Path, b: Path) -> None:
    questions = [f"question {number}" for number in range(300)]
    write(a, records(prompted(questions)))
    write(b, records(prompted(questions)))
    same = compare_runs(a, b).same_tasks
    assert (same.basis, same.shared, same.checked) == ("prompts in the rollouts", 300, 100)
    write(b, records(prompted(questions[::-1])))
    (warning,) = compare_runs(a, b).warnings
    assert warning.startswith("100 of 100 shared tasks that were checked (of 300) are not the same task")


def test_torn_materialized_inputs_do_not_fail_a_comparison(a: Path, b: Path) -> None:
    both(a, b)
    inputs(a, ["p"] * 4)
    b.with_name("b_materialized_inputs.jsonl").write_text('{"responses_create')
    same = compare_runs(a, b).same_tasks
    assert (same.basis, same.checked, same.shared) == (None, 0, 4)


def test_flips_show_the_beginning_of_their_prompt(a: Path, b: Path) -> None:
    questions = ["first " * 100, "What\nis 2 + 2?"]
    write(a, records({task: [1] for task in range(2)}))
    write(b, records({task: [0] for task in range(2)}))
    for path in (a, b):
        inputs(path, questions)
    (agent,) = compare_runs(a, b).agents
    assert [flip.prompt for flip in agent.flips.regressions] == [("first " * 100)[:200], "What is 2 + 2?"]
    write(a, records(prompted([*questions, "x"])))
    write(b, records({1: [0]}))
    a.with_name("a_materialized_inputs.jsonl").unlink()
    (agent,) = compare_runs(a, b).agents
    assert [flip.prompt for flip in agent.flips.regressions] == ["What is 2 + 2?"]
