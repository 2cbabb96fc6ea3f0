"""`ng show`: rollouts as people can read them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.gym.cli.conftest import Ng
from tests.support.pseudo_terminal import run_on_terminal

Record = dict[str, Any]
FILE = "results/a.jsonl"


def message(role: str, text: str) -> Record:
    return {"type": "message", "role": role, "content": text}


def rollout(
    task: int, index: int = 0, reward: float = 1.0, tool: str = "calculator", **fields: Any
) -> Record:
    question = f"What is {task} + {index}?"
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I should add."}]},
        {"type": "function_call", "name": tool, "arguments": f'{{"a": {task}}}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": str(task + index)},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    usage = {"input_tokens": 1200, "output_tokens": 34, "total_tokens": 1234}
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "agent_ref": {"name": "adder"},
        "responses_create_params": {"input": [message("system", "Use the tool."), message("user", question)]},
        "response": {"output": output, "usage": usage},
        "reward": reward,
        **fields,
    }


def write(path: str, *records: Record) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(f"{json.dumps(record)}\n" for record in records))


def write_usual() -> None:
    write(
        FILE, *(rollout(task, index, reward=task / 4 + index / 8) for task in (2, 0, 1) for index in (1, 0))
    )


def keys(text: str) -> list[str]:
    return re.findall(r"^rollout (\S+)", text, re.M)


def test_rollout_is_shown_with_its_conversation_and_numbers(ng: Ng) -> None:
    write(FILE, rollout(17, 2, steps=3, expected_answer="19", _ng_attempt_index=1))
    shown = ng("show", FILE, "17:2")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines() == [
        "rollout 17:2 of adder (attempt 2)",
        "  system: Use the tool.",
        "  user: What is 17 + 2?",
        "  model thinks: I should add.",
        '  model calls calculator({"a": 17})',
        "  tool returns 19",
        "  model: Done.",
        "  reward 1, steps 3; tokens 1,200 in, 34 out",
        "  expected_answer: 19",
    ]


def test_tool_calls_are_counted_only_where_something_went_wrong(ng: Ng) -> None:
    def counts(failed: int = 0, unknown: int = 0) -> dict[str, int]:
        return {"calls": 3, "failed": failed, "unknown": unknown, "invalid": 0}

    good = {"_ng_steps": 4, "_ng_tools": {"calculator": counts()}}
    bad = {
        "_ng_steps": 4,
        "_ng_tools": {"calculator": counts(failed=1), "abacus": counts(unknown=3)},
        "_ng_stopped_by": "max_steps",
    }
    write(FILE, rollout(0, 0, **good), rollout(0, 1, **bad), rollout(0, 2, _ng_tools=7, _ng_stopped_by=[]))
    assert "_ng_" not in ng("show", FILE, "0").out
    assert ng("show", FILE, "0:0").out.splitlines()[-1].startswith("  reward 1;")
    line = "  ended at max_steps; calculator 3 calls, 1 failed; 3 calls of unknown tools"
    assert ng("show", FILE, "0:1").out.splitlines()[-1] == line


def test_older_files_have_their_conversation_as_chat_messages(ng: Ng) -> None:
    calls = [{"id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    chat = [
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    ]
    write(FILE, {"reward": 0.5, "output": chat}, {"reward": 1.0, "output": chat})
    shown = ng("show", FILE, "1")
    assert shown.out.splitlines() == [
        "rollout 1:0",
        "  user: What is 1 + 1?",
        '  model calls add({"a": 1})',
        "  tool returns 2",
        "  model: It is 2.",
        "  reward 1",
    ]
    assert "numbered from 0" in ng("show", FILE).out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--worst", "2"], ["0:0", "0:1"]),
        (["--best", "2"], ["2:1", "2:0"]),
        (["--best", "99"], ["2:1", "2:0", "1:1", "1:0", "0:1", "0:0"]),
        (["1"], ["1:0", "1:1"]),
        (["key=1:1"], ["1:1"]),
        (["--tool", "calculator", "--most", "2"], ["2:1", "2:0"]),
    ],
)
def test_rollouts_are_selected(ng: Ng, arguments: list[str], expected: list[str]) -> None:
    write_usual()
    shown = ng("show", FILE, *arguments)
    assert (shown.code, keys(shown.out)) == (0, expected), shown


def test_random_rollouts_are_different_ones_of_the_file(ng: Ng) -> None:
    write_usual()
    found = keys(ng("show", FILE, "--random", "3").out)
    assert len(set(found)) == 3 and found == sorted(found)


def test_only_rollouts_that_call_the_tool_are_shown(ng: Ng) -> None:
    write(FILE, rollout(0, tool="other"), rollout(1, tool="größe"), rollout(2, note='"name":"größe"'))
    assert keys(ng("show", FILE, "--tool", "größe").out) == ["1:0"]
    assert keys(ng("show", FILE, "--tool", "other").out) == ["0:0"]
    ng("show", FILE, "--tool", "missing").assert_complains(
        "no rollout calls the tool 'missing'", "other, größe, calculator"
    )


def failure(task: int, **fields: Any) -> Record:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
        "agent_ref": {"name": "adder"},
        "_ng_failure_class": "data",
        "error_type": "ServerCallError",
        "error_message": "POST calculator/verify: 422 (calculator responded with 422): "
        '{"detail":[{"type":"missing","loc":["body","expected_answer"],"msg":"Field required","input":{}}]}',
        "attempts": 2,
        "time": "2026-01-01T12:00:00Z",
        **fields,
    }


def test_failures_are_shown_with_cause_and_input_unless_they_have_succeeded_since(ng: Ng) -> None:
    write(FILE, rollout(0))
    write("results/a_failures.jsonl", failure(0), failure(1, attempts=1), failure(1), failure(2))
    write("results/a_materialized_inputs.jsonl", rollout(0), rollout(1))
    shown = ng("show", FILE, "--failed")
    assert shown.out.splitlines() == [
        "rollout 1:0 of adder",
        "  system: Use the tool.",
        "  user: What is 1 + 0?",
        "  failed after 2 attempts at 2026-01-01T12:00:00Z",
        "  data: calculator/verify 422: expected_answer: Field required",
        "",
        "rollout 2:0 of adder",
        "  failed after 2 attempts at 2026-01-01T12:00:00Z",
        "  data: calculator/verify 422: expected_answer: Field required",
    ]
    assert ng("show", "results/a_failures.jsonl").out == shown.out
    assert keys(ng("show", FILE, "2:0").out) == ["2:0"]
    assert '"loc":["body","expected_answer"]' in ng("show", FILE, "2:0", "--full").out
    Path(FILE).unlink()
    assert keys(ng("show", FILE, "--failed").out) == ["0:0", "1:0", "2:0"]


def test_rollouts_that_a_stop_has_cancelled_have_not_failed(ng: Ng) -> None:
    cancelled = failure(1, _ng_failure_class="cancelled")
    write(FILE, rollout(0))
    write("results/a_failures.jsonl", cancelled)
    assert "Failed" not in ng("show", FILE).out
    ng("show", FILE, "--failed").assert_complains(
        "has succeeded since, or was cancelled; there are no failures"
    )
    write("results/a_failures.jsonl", failure(1), cancelled)
    assert keys(ng("show", FILE, "--failed").out) == ["1:0"]


def test_without_a_selection_the_file_is_described(ng: Ng) -> None:
    write_usual()
    write("results/a_failures.jsonl", failure(7))
    shown = ng("show", FILE).out
    assert f"{FILE}: 6 rollouts of 3 tasks" in shown
    assert re.search(r"adder +6 +0\.3125 +0 +0\.625", shown)
    assert "Failed: 1 rollout in results/a_failures.jsonl" in shown
    assert f"ng show {FILE} 0:0" in shown and "--worst 5" in shown


def test_without_a_file_the_newest_one_is_used(ng: Ng) -> None:
    ng("show").assert_complains("no rollouts files below results")
    write_usual()
    write("results/a_materialized_inputs.jsonl", rollout(5))
    assert keys(ng("show", "1:1").out) == keys(ng("show", FILE, "1:1").out) == ["1:1"]
    assert keys(ng("show", "--worst", "1").out) == ["0:0"]


def test_mistakes_are_explained(ng: Ng) -> None:
    write_usual()
    ng("show", FILE, "first").assert_complains("'first' is not a key", "17:2")
    ng("show", FILE, "9:9").assert_complains(f"{FILE}: no rollout 9:9; the file has 0:0, 0:1")
    ng("show", FILE, "1:9").assert_complains("no rollout 1:9; the file has 1:0, 1:1")
    ng("show", "nowhere.jsonl", "1:9").assert_complains("nowhere.jsonl: cannot be read: No such file")
    ng("show", "results", "1:9").assert_complains("results: a folder")
    ng("show", FILE, "--failed").assert_complains("a_failures.jsonl: not found; there are no failures")
    ng("show", FILE, "1:1", "--worst", "3").assert_complains("key and worst exclude each other")
    ng("show", FILE, "--worst", "0").assert_complains("worst")
    write(FILE, {**rollout(0), "reward": None})
    ng("show", FILE, "--best", "1").assert_complains(f"{FILE}: has no rollouts with a reward")
    write(FILE)
    ng("show", FILE, "--random", "1").assert_complains(f"{FILE}: has no rollouts; ng show")


def test_bad_lines_are_skipped_and_listed(ng: Ng) -> None:
    lines = [json.dumps(rollout(0)), "torn {", json.dumps({"reward": 1}), json.dumps(rollout(1))]
    Path("results").mkdir()
    Path(FILE).write_text("\n".join(lines) + "\n")
    shown = ng("show", FILE, "1:0")
    assert keys(shown.out) == ["1:0"]
    assert (
        "2 lines skipped" in shown.err and f"{FILE}:2: not JSON" in shown.err and f"{FILE}:3: " in shown.err
    )


def test_nothing_in_a_record_can_control_the_terminal(ng: Ng) -> None:
    evil = "\x1b[2J\x1b]0;title\x07ok\r\x00\u202e"
    record = rollout(
        0, tool=f"add{evil}", **{f"note{evil}": f"a\n{evil}", "agent_ref": {"name": f"agent{evil}"}}
    )
    record["response"]["output"] += [message(f"role{evil}", f"line\n{evil}"), {"type": f"odd{evil}"}]
    write(FILE, record)
    write("results/a_failures.jsonl", failure(1, error_type=evil, error_message=evil, time=evil))
    for arguments in (["0:0"], ["0:0", "--full"], ["1:0", "--full"], []):
        shown = ng("show", FILE, *arguments).out
        assert all(character.isprintable() or character == "\n" for character in shown)
        assert "ok" in shown or not arguments


def test_long_texts_and_prompts_are_shortened_unless_full(ng: Ng) -> None:
    code = "def f():\n    return 1\n" + "x = 'a word'\n" * 400
    record = rollout(0)
    record["responses_create_params"]["input"] = [
        message("user", f"question {number}") for number in range(9)
    ]
    record["response"]["output"].append(message("assistant", code))
    write(FILE, record)
    short, full = ng("show", FILE, "0:0").out, ng("show", FILE, "0:0", "--full").out
    assert "          return 1" in short and "more characters; --full shows all" in short
    assert "question 8" in short and "question 3" not in short and "8 more messages in the prompt" in short
    assert len(short.splitlines()) < 25
    assert full.count("a word") == 400 and "question 3" in full and "--full" not in full


def test_rollouts_can_be_printed_as_json(ng: Ng) -> None:
    write_usual()
    lines = ng("show", FILE, "--worst", "2", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [rollout(0, 0, 0.0), rollout(0, 1, 0.125)]


def test_lines_fit_the_terminal(ng: Ng) -> None:
    record = rollout(0)
    record["response"]["output"].append(message("assistant", "many words " * 100))
    write(FILE, record)
    for arguments in (["0:0", "--full"], []):
        shown = run_on_terminal("ng", "show", FILE, *arguments, cwd=Path.cwd(), columns=60)
        assert shown.code == 0 and max(map(len, shown.text.splitlines())) <= 60, shown.text
