"""Rollouts taken in by their shape give the same columns as field by field."""

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
    """The rollouts with these fields and, where there is one, this response."""
    return [fields if response is None else {"response": response, **fields} for fields, response in records]


def rows_of(columns: Columns) -> list[str]:
    """What is held of each rollout, in any order."""
    lists = as_lists(columns)
    retried = {*lists.pop("retried")}
    rows = zip(*lists.values(), strict=True)
    return sorted(repr((row, place in retried)) for place, row in enumerate(rows))


@given(RECORDS)
def test_batches_of_anything_are_taken_as_one_by_one(
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
def test_the_short_way_takes_what_the_long_way_takes(
    records: list[tuple[dict[str, Any], dict[str, Any] | None]],
) -> None:
    short, long = Intake(Columns()), Intake(Columns())
    made = made_of(records)
    read = orjson.loads(orjson.dumps([one for one in made for _ in range(3)] * 2))
    for first in range(0, len(read), 3):  # alike, three at a time; the second time every field is known
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
    assert intake.columns.odd == {"reward": 3}
    assert intake.columns.metrics()["non_finite/reward"] == 3
    assert intake.columns.metrics()["mean/reward"] == 1.0


def test_values_that_were_not_finite_before_they_were_written_are_counted() -> None:
    intake = Intake(Columns())
    records = [{"reward": 1.0, "speed": None, "_ng_non_finite": ["speed"]}, {"reward": 1.0, "speed": 2.0}]
    for _ in range(2):  # the second time every field is known
        intake.take_finite([0, 0], [0, 1], records)
        intake.take_finite([0, 0], [2, 3], records[::-1])
        intake.take_finite([0, 0], [4, 5], [records[0], records[0]])
    intake.take(0, 0, {"reward": 1.0, "_ng_non_finite": "speed"})  # somebody else's
    assert intake.columns.odd == {"speed": 8}


def test_a_rollout_that_took_several_tries_is_known_by_its_attempt_index() -> None:
    intake = Intake(Columns())
    for attempt in (None, 0, 2, 0, 1):
        record = {"reward": 1.0} if attempt is None else {"reward": 1.0, "_ng_attempt_index": attempt}
        intake.take_finite([0], [0], [record])
    assert list(intake.columns.retried) == [2, 4]
