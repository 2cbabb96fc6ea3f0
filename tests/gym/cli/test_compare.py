import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gym.cli.conftest import Ng
from tests.support.pseudo_terminal import run_on_terminal

RED = "\x1b[31mred\x1b[0m\x1b]0;owned\x07\u202e"


def write(name: str, rollouts: Iterable[tuple[int, float]], agent: str = "shop", **fields: Any) -> None:
    lines = [
        {
            "_ng_task_index": task,
            "_ng_rollout_index": number,
            "agent_ref": {"name": agent},
            "reward": reward,
            **fields,
        }
        for number, (task, reward) in enumerate(rollouts)
    ]
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_inputs(name: str, prompts: Mapping[int, str]) -> None:
    rows = [
        {"responses_create_params": {"input": text}, "_ng_task_index": task, "_ng_rollout_index": 0}
        for task, text in prompts.items()
    ]
    Path(f"{name}_materialized_inputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def runs(ng: Ng) -> None:
    """Four tasks: one regression, two improvements, one unchanged."""
    write("a.jsonl", [(0, 1), (1, 0), (2, 0), (3, 1)])
    write("b.jsonl", [(0, 0), (1, 1), (2, 1), (3, 1)])
    for name in "ab":
        write_inputs(name, {task: f"What is 2 + {task}?" for task in range(4)})


def test_two_runs_are_shown_task_by_task(ng: Ng) -> None:
    done = ng("compare", "a.jsonl", "b.jsonl")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "A: a.jsonl",
        "B: b.jsonl",
        "",
        "shop",
        "reward: A 0.500, B 0.750, difference +0.250 ± 1.523 (95 % CI -1.273 to 1.773), p = 0.64, "
        "4 tasks paired",
        "No significant difference with 4 tasks (paired t test over tasks)",
        "A alone: 95 % CI 0.001 to 0.999 (4 rollouts); B alone: 95 % CI 0.010 to 1.000 (4 rollouts)",
        "",
        "Flips (a task is solved if its mean reward is at least 0.5): 1 regression, 2 improvements, "
        "1 unchanged, 0 other changes",
        "",
        "Regressions (solved in A, not in B):",
        "task  A (rollouts)  B (rollouts)  change  prompt",
        "────────────────────────────────────────────────────────",
        "0     1 (1)         0 (1)         -1      What is 2 + 0?",
        "",
        "Improvements (solved in B, not in A):",
        "task  A (rollouts)  B (rollouts)  change  prompt",
        "────────────────────────────────────────────────────────",
        "1     0 (1)         1 (1)         +1      What is 2 + 1?",
        "2     0 (1)         1 (1)         +1      What is 2 + 2?",
        "",
        "The tasks are the same in both runs, compared by materialized inputs (4 of 4 shared tasks).",
    ]


def test_json_is_one_object_and_nothing_else(ng: Ng) -> None:
    done = ng("compare", "a.jsonl", "b.jsonl", "--json", "--most-flips", "1")
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out)
    (agent,) = data["agents"]
    assert (agent["metric"]["difference"], agent["verdict"]) == (0.25, "no_difference_shown")
    assert [flip["task"] for flip in agent["flips"]["improvements"]] == [1]
    assert agent["flips"]["improvement_count"] == 2


def test_a_run_against_itself_is_the_same(ng: Ng) -> None:
    out = ng("compare", "a.jsonl", "a.jsonl").out
    assert "reward: A 0.5, B 0.5, difference 0, p = 1, 4 tasks paired" in out
    assert "Every task has the same mean in both" in out
    assert "0 regressions, 0 improvements, 4 unchanged" in out


@pytest.mark.parametrize(("metric", "word"), [("reward", "better"), ("speed", "higher")])
def test_verdict_is_stated_in_words(ng: Ng, metric: str, word: str) -> None:
    for name, more in (("a", 0.0), ("b", 1.0)):
        rng = random.Random(name)
        lines = [(task, rng.gauss(more, 0.5)) for task in range(30)]
        write(f"{name}.jsonl", lines)
        text = Path(f"{name}.jsonl").read_text()
        Path(f"{name}.jsonl").write_text(text.replace('"reward"', f'"{metric}"'))
    assert f"\nB is {word} (paired" in ng("compare", "a.jsonl", "b.jsonl", f"+metric={metric}").out
    assert f"\nA is {word} (paired" in ng("compare", "b.jsonl", "a.jsonl", f"+metric={metric}").out


def test_comparison_of_one_task_is_reported_as_inconclusive(ng: Ng) -> None:
    write("b.jsonl", [(0, 0)])
    out = ng("compare", "a.jsonl", "b.jsonl").out
    assert "reward: A 1, B 0, difference -1, 1 task paired\nOne task is too few" in out
    assert "Not compared: 3 tasks only in A, 0 only in B" in out


def test_both_agents_and_agents_of_one_run_only_are_listed(ng: Ng) -> None:
    write("b.jsonl", [(0, 1), (1, 1)], agent="bank")
    assert "\nshop in A and bank in B: two agents, same tasks\n" in ng("compare", "a.jsonl", "b.jsonl").out
    write("c.jsonl", [(7, 1)], agent="post")
    Path("b.jsonl").write_text(Path("a.jsonl").read_text() + Path("c.jsonl").read_text())
    assert "\nOnly in B, not compared: post\n" in ng("compare", "a.jsonl", "b.jsonl").out


def test_different_tasks_get_no_verdict(ng: Ng) -> None:
    write_inputs("b", {task: f"What is 3 + {task % 2}?" for task in range(4)})
    out = ng("compare", "a.jsonl", "b.jsonl").out
    assert "\nNo verdict: none of the tasks is the same in both runs\n" in out
    assert not any(word in out for word in ("p = ", "significant", "better", "Flips", "difference"))
    found = json.loads(ng("compare", "a.jsonl", "b.jsonl", "--json").out)
    assert found["agents"][0]["verdict"] == "different_tasks"


def test_different_tasks_with_the_same_indices_cause_a_warning(ng: Ng) -> None:
    write_inputs("b", {task: f"What is 3 + {task % 2}?" for task in range(4)})
    warning = "4 of 4 shared tasks are not the same task in both runs: 0, 1, 2, 3; "
    warning += "compare runs of the same input"
    done = ng("compare", "a.jsonl", "b.jsonl")
    assert (done.code, done.out.splitlines()[2]) == (0, f"warning: {warning}")
    done = ng("compare", "a.jsonl", "b.jsonl", "--json")
    assert json.loads(done.out)["warnings"] == [warning]


def test_comparison_reports_if_tasks_could_not_be_checked(ng: Ng) -> None:
    Path("b_materialized_inputs.jsonl").unlink()
    assert "Could not check that the tasks are the same" in ng("compare", "a.jsonl", "b.jsonl").out


def test_significant_fields_are_marked_if_many_are_compared(ng: Ng) -> None:
    for name, more in (("a", 0), ("b", 1)):
        rng = random.Random(name)
        with Path(f"{name}.jsonl").open("w") as file:
            for task in range(20):
                tokens = rng.randint(100, 200) + 200 * more
                fields = {f"field_{number}": rng.random() for number in range(5)}
                record = {
                    "_ng_task_index": task,
                    "_ng_rollout_index": 0,
                    "agent_ref": {"name": "shop"},
                    "reward": 1,
                    "level": task,
                    **fields,
                    "response": {"usage": {"output_tokens": tokens}},
                }
                file.write(json.dumps(record) + "\n")
    out = ng("compare", "a.jsonl", "b.jsonl").out
    (tokens_line,) = [line for line in out.splitlines() if line.startswith("output_tokens")]
    assert " < 0.0001 *  " in tokens_line
    assert out.count(" *\n") == 0
    assert "With 7 fields, some have p < 0.05 by chance; * marks fields" in out
    assert "Equal in both runs, task by task: level" in out


def test_control_characters_in_files_do_not_reach_the_terminal(ng: Ng) -> None:
    for name in "ab":
        write_inputs(name, {task: f"{RED}\n\x1b[2Jdo\x08 {task}\x9b5m" for task in range(4)})
    write("a.jsonl", [(0, 1), (1, 0)], agent=f"shop{RED}", **{f"size{RED}": 1})
    write("b.jsonl", [(0, 0), (1, 1)], agent=f"bank{RED}", **{f"size{RED}": 2})
    done = ng("compare", "a.jsonl", "b.jsonl")
    assert done.code == 0
    assert "red do 0\n" in done.out
    assert all(line.isprintable() for line in done.out.split("\n"))
    assert all(line.isprintable() for line in ng("compare", "a.jsonl", "b.jsonl", "--json").out.split("\n"))
    done = ng("compare", "a.jsonl", "b.jsonl", "+metric=sizes")
    done.assert_complains("did you mean sizered?")
    assert all(line.isprintable() for line in done.err.split("\n"))


def test_long_prompts_are_cut_to_fit(ng: Ng) -> None:
    for name in "ab":
        write_inputs(name, {0: "word " * 500, 1: "数学" * 500, 2: "short"})
    lines = [line for line in ng("compare", "a.jsonl", "b.jsonl").out.splitlines() if "…" in line]
    assert [len(line) <= 100 for line in lines] == [True, True]
    (wide,) = [line for line in lines if "数" in line]
    assert wide.endswith("…")
    assert len(wide) + wide.count("数") + wide.count("学") <= 100


def test_mistakes_end_with_one_message(ng: Ng) -> None:
    ng("compare", "a.jsonl", "b.jsonl", "+metric=rewards").assert_complains("did you mean reward?")
    ng("compare", "a.jsonl", "none.jsonl").assert_complains("none.jsonl: cannot be read")
    ng("compare", "a.jsonl").assert_complains("b_fpath")
    ng("compare", "a.jsonl", "b.jsonl", "--most_flips=-1").assert_complains("most_flips")
    ng("compare", "a.jsonl", "b.jsonl", "+agent_name=shp").assert_complains(
        "no rollout of agent 'shp'", "shop"
    )


def test_torn_line_is_an_error_or_is_skipped_and_reported(ng: Ng) -> None:
    with Path("b.jsonl").open("a") as file:
        file.write('{"_ng_task')
    ng("compare", "a.jsonl", "b.jsonl").assert_complains("b.jsonl:5: the last line is incomplete")
    done = ng("compare", "a.jsonl", "b.jsonl", "+skip_bad_lines=true", "--json")
    assert done.code == 0
    assert done.err.startswith("warning: 1 line skipped:\n  b.jsonl:5: ")
    assert json.loads(done.out)["agents"][0]["metric"]["tasks"] == 4


@pytest.mark.parametrize("columns", [60, 80])
def test_tables_fit_the_terminal(columns: int) -> None:
    name = "seconds_that_all_calls_to_the_search_tool_of_this_environment_took"
    for run, seconds in (("a", 1234.5), ("b", 98765.4)):
        write(f"{run}.jsonl", [(task, task % 2) for task in range(4)], **{name: seconds})
        write_inputs(run, {task: f"What is {task}? " * 20 for task in range(4)})
    write("b.jsonl", [(0, 1), (1, 0), (2, 0), (3, 1)], **{name: 98765.4})
    shown = run_on_terminal("ng", "compare", "a.jsonl", "b.jsonl", cwd=Path.cwd(), columns=columns)
    lines = shown.text.splitlines()
    rules = [place for place, line in enumerate(lines) if line.startswith("──")]
    assert shown.code == 0 and len(rules) >= 2, shown.text
    for rule in rules:
        table = [lines[rule - 1], lines[rule], lines[rule + 1]]
        assert max(map(len, table)) <= columns, table
    assert "seconds_th" in shown.text and "…" in shown.text
