"""Rollouts added in batches give the same columns as rollouts added one by one."""

import math
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.metrics import Columns, Intake

VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.just("text") | st.just([1])
NAMES = st.sampled_from(["reward", "solved", "input_tokens", "_ng_x", "_ng_attempt_index"])
USAGE = st.none() | st.just("none") | st.dictionaries(st.sampled_from(["input_tokens", "_ng_x", "n"]), VALUES)
RECORDS = st.lists(
    st.tuples(st.dictionaries(NAMES, VALUES), st.none() | st.builds(lambda usage: {"usage": usage}, USAGE)),
    max_size=20,
)


def as_lists(columns: Columns) -> dict[str, list[float | None]]:
    taken = {
        name: [None if math.isnan(value) else value for value in columns.values(name)]
        for name in columns.names
    }
    return {
        **taken,
        "tasks": list(columns.tasks),
        "rollouts": list(columns.rollouts),
        "retried": list(columns.retried),
    }


def made_of(records: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> list[dict[str, Any]]:
    """Rollouts with these fields and this response, if it is not None."""
    return [fields if response is None else {"response": response, **fields} for fields, response in records]


def rows_of(columns: Columns) -> list[str]:
    """The values of each rollout, sorted."""
    lists = as_lists(columns)
    retried = {*lists.pop("retried")}
    rows = zip(*lists.values(), strict=True)
    return sorted(repr((row, place in retried)) for place, row in enumerate(rows))


@given(RECORDS)
def test_batches_give_the_same_columns_as_single_rollouts(
    records: list[tuple[dict[str, Any], dict[str, Any] | None]],
) -> None:
    together, single = Intake(Columns()), Intake(Columns())
    made = made_of(records)
    if made:
        for _ in range(2):
            together.take_finite([1] * len(made), list(range(len(made))), orjson.loads(orjson.dumps(made)))
            for place, record in enumerate(made):
                single.take(1, place, record)
    assert together.columns.names == single.columns.names
    assert rows_of(together.columns) == rows_of(single.columns)


@given(RECORDS)
def test_fast_path_gives_the_same_columns_as_the_general_one(
    records: list[tuple[dict[str, Any], dict[str, Any] | None]],
) -> None:
    short, long = Intake(Columns()), Intake(Columns())
    made = made_of(records)
    read = orjson.loads(orjson.dumps([one for one in made for _ in range(3)] * 2))
    for first in range(
        0, len(read), 3
    ):  # three equal ones at a time; in the second half every field is known
        batch, places = read[first : first + 3], range(first, first + 3)
        short.take_finite([0] * 3, list(places), batch)
        for place, record in zip(places, batch, strict=True):
            long.take(0, place, record)
    assert as_lists(short.columns) == as_lists(long.columns)
    assert short.columns.names == long.columns.names


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    intake = Intake(Columns())
    for value in (1.0, math.nan, math.inf, 10**400, None):
        intake.take(0, 0, {"reward": value})
    assert intake.columns.non_finite == {"reward": 3}
    assert intake.columns.metrics()["non_finite/reward"] == 3
    assert intake.columns.metrics()["mean/reward"] == 1.0


def test_fields_that_a_record_lists_as_not_finite_are_counted() -> None:
    intake = Intake(Columns())
    records = [{"reward": 1.0, "speed": None, "_ng_non_finite": ["speed"]}, {"reward": 1.0, "speed": 2.0}]
    for _ in range(2):  # the second time every field is known
        intake.take_finite([0, 0], [0, 1], records)
        intake.take_finite([0, 0], [2, 3], records[::-1])
        intake.take_finite([0, 0], [4, 5], [records[0], records[0]])
    intake.take(0, 0, {"reward": 1.0, "_ng_non_finite": "speed"})  # not a list: written by another program
    assert intake.columns.non_finite == {"speed": 8}


def test_rollout_with_an_attempt_index_counts_as_retried() -> None:
    intake = Intake(Columns())
    for attempt in (None, 0, 2, 0, 1):
        record = {"reward": 1.0} if attempt is None else {"reward": 1.0, "_ng_attempt_index": attempt}
        intake.take_finite([0], [0], [record])
    assert list(intake.columns.retried) == [2, 4]
