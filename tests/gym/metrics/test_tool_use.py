import json
from typing import Any

import pytest

from nemo_gym.metrics import Columns, Intake, compute_aggregate_metrics
from nemo_gym.metrics.tool_use import ToolUse
from nemo_gym.rollout_collection.display.tool_lines import tool_lines


def counts(calls: int, failed: int = 0, unknown: int = 0, invalid: int = 0) -> dict[str, int]:
    return {"calls": calls, "failed": failed, "unknown": unknown, "invalid": invalid}


def rollout(task: int, tools: dict[str, Any], steps: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "reward": 1.0,
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
        "_ng_steps": steps,
        "_ng_tools": tools,
    } | more


ROLLOUTS = [
    rollout(0, {"add": counts(3, failed=1), "rm": counts(1, unknown=1)}),
    rollout(1, {"add": counts(2, invalid=1)}, steps=5, _ng_stopped_by="max_steps"),
    rollout(2, {}),
    rollout(3, {"add": counts(2, unknown=2), "look": counts(1)}, steps=3),
]
METRICS = {
    "steps/mean": 3.0,
    "steps/stopped_by/max_steps": 1,
    "tools/add/calls": 5,
    "tools/add/failed": 1,
    "tools/add/invalid": 1,
    "tools/look/calls": 1,
    "tools/look/failed": 0,
    "tools/look/invalid": 0,
    "unknown_tools/calls": 3,
}


def tool_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in metrics.items()
        if name.split("/")[0] in ("steps", "tools", "unknown_tools")
    }


def test_tool_calls_of_a_run_are_added_up() -> None:
    metrics = compute_aggregate_metrics(ROLLOUTS).agent_metrics
    assert tool_metrics(metrics) == METRICS


@pytest.mark.parametrize("are_alike", [True, False])
def test_every_way_to_add_rollouts_counts_each_once(are_alike: bool) -> None:
    records = [dict(one) for one in ROLLOUTS]
    for record in records if are_alike else ():
        record.setdefault("_ng_stopped_by", None)
    intake, places = Intake(Columns()), list(range(4))
    intake.take(*(0, 0), rollout(0, {}))  # so that the fields are known
    for tasks in (places[:3], places[3:]):
        intake.take_finite(tasks, [1] * len(tasks), [records[task] for task in tasks])
    other = Columns()
    other.extend(intake.columns)
    metrics = other.metrics()
    assert tool_metrics(metrics) == METRICS | {"steps/mean": 14 / 5}


def test_rollouts_without_counts_have_no_such_metrics() -> None:
    assert tool_metrics(compute_aggregate_metrics([{"reward": 1.0}]).agent_metrics) == {}
    assert tool_lines(ToolUse()) == []


@pytest.mark.parametrize("tools", [None, 7, [], {"a": 1}, {"a": {"calls": "x"}}, {"a": {"calls": -1}}])
def test_counts_in_another_form_are_left_out(tools: Any) -> None:
    used = ToolUse()
    used.take({"_ng_tools": tools, "_ng_steps": "many", "_ng_stopped_by": 3})
    assert used.metrics() == {}


def test_counts_stay_bounded_whatever_names_models_invent() -> None:
    used = ToolUse()
    for number in range(1000):
        used.take(rollout(0, {f"made_up_{number}": counts(1, unknown=1), f"route_{number}": counts(1)}))
    assert len(used.by_tool) <= 201 and used.unknown_calls == 1000
    assert sum(one["calls"] for one in used.by_tool.values()) == 1000


def test_end_of_a_run_shows_the_most_used_tools_in_one_line() -> None:
    used = ToolUse()
    used.take(rollout(0, {"calculator": counts(1204, failed=3, invalid=1), "x": counts(12, unknown=12)}))
    [line] = tool_lines(used)
    assert line == "tools: calculator 1,204 calls, 3 failed, 1 invalid; 12 calls of unknown tools"
    for number in range(6):
        used.take(rollout(0, {f"t{number}": counts(1)}, _ng_stopped_by="max_steps"))
    line, ended = tool_lines(used)
    assert line.endswith("t3 1 call; 2 more tools 2 calls; 12 calls of unknown tools")
    assert ended == "6 rollouts of 7 ended at max_steps"
    hostile = ToolUse()
    hostile.take(rollout(0, {"\x1b[2J" + "n" * 500: counts(1)}))
    assert "\x1b" not in tool_lines(hostile)[0] and len(tool_lines(hostile)[0]) < 80


def test_metrics_of_the_counts_are_json() -> None:
    assert json.loads(json.dumps(METRICS)) == METRICS
