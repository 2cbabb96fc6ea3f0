"""Numbers that describe the row, not what the agent did, are recognised."""

from typing import Any

import pytest

from nemo_gym.metrics import Columns, columns_of, default_key_metrics
from nemo_gym.metrics.copied_numbers import count_copied
from nemo_gym.records import packed

Row = dict[str, Any]


def row(task: int, **fields: Any) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "agent"}, **fields}


def copied(rows: list[Row], rollouts: list[Row]) -> set[str]:
    columns: dict[str, Columns] = {"agent": columns_of(rollouts)}
    count_copied(columns, [(packed((one["_ng_task_index"], one["_ng_rollout_index"])), one) for one in rows])
    return set(columns["agent"].copied_names())


TASKS = range(3)


@pytest.mark.parametrize(
    ("rows", "rollouts", "expected"),
    [
        ([row(n, level=n) for n in TASKS], [row(n, level=n, reward=1) for n in TASKS], {"level"}),
        ([row(n, level=n) for n in TASKS], [row(n, level=float(n), steps=n) for n in TASKS], {"level"}),
        ([row(n, hard=True) for n in TASKS], [row(n, hard=True) for n in TASKS], {"hard"}),
        ([row(n, level=n) for n in TASKS], [row(n, level=0) for n in TASKS], set()),
        ([row(n, reward=1) for n in TASKS], [row(n, reward=1) for n in TASKS], set()),
        ([row(n, level=n) for n in TASKS[:2]], [row(n, level=n) for n in TASKS], set()),
        ([row(n, level=n) for n in TASKS], [row(n, **({"level": n} if n else {})) for n in TASKS], {"level"}),
        ([row(n, level=n) for n in TASKS], [], set()),
        ([], [row(n, level=n) for n in TASKS], set()),
        ([row(n, deep={"level": n}) for n in TASKS], [row(n, level=n) for n in TASKS], set()),
    ],
)
def test_field_is_copied_if_all_rollouts_have_the_value_of_their_row(
    rows: list[Row], rollouts: list[Row], expected: set[str]
) -> None:
    assert copied(rows, rollouts) == expected
    assert copied(rows[::-1], rollouts) == expected


def test_rows_without_common_numbers_are_not_read_to_the_end() -> None:
    columns = {"agent": columns_of([row(0, level=1)])}

    def rows() -> Any:
        for task in range(1000):
            assert task < 200, "it has seen enough"
            yield packed((task, 0)), row(task, other=1)

    count_copied(columns, rows())
    assert not columns["agent"].copied_names()


def test_columns_of_several_files_are_copied_only_if_all_are() -> None:
    known, unknown = columns_of([row(0, level=1)]), columns_of([row(1, level=2)])
    known.mark_copied(["level"])
    assert known.copied_names() == {"level"}
    known.extend(unknown)
    assert not known.copied_names()


def test_key_metrics_leave_copied_fields_out_with_their_errors() -> None:
    metrics = columns_of([row(n, level=n, reward=n) for n in TASKS]).metrics()
    names = default_key_metrics(metrics, ["level"])
    assert "mean/reward" in names and "mean/reward/ci95_low" in names
    assert not [name for name in names if "level" in name]
    assert "mean/level/std_err" in default_key_metrics(metrics)
