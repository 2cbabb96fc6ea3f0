import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from nemo_gym.codec import decode_json, encode_json


class Thing(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    size: int | None = None
    score: float = 0.0


FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
"""Any JSON value, with numbers of any size."""


def same(left: Any, right: Any) -> bool:
    """Equal in value and type: an int is not a float."""
    return left == right and json.dumps(left) == json.dumps(right)


@given(JSON)
def test_any_json_value_survives_the_round_trip(value: Any) -> None:
    assert same(decode_json(encode_json(value)), value)


@given(JSON)
def test_reading_agrees_with_the_json_module(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert same(decode_json(text), json.loads(text))
        assert same(decode_json(text.encode()), json.loads(text))


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40])
def test_whole_number_of_any_size_stays_exact(number: int) -> None:
    for value in (number, {"deep": [number]}):
        assert same(decode_json(encode_json(value)), value)
    assert same(decode_json(encode_json(Thing(name="x", size=number)))["size"], number)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("beside", [{}, {"big": 2**70}, {7: "a key that is not text"}, {"half": "\ud800"}])
def test_nan_and_infinities_become_null_next_to_any_value(number: float, beside: dict[Any, Any]) -> None:
    data = encode_json({"list": [number, 1.5], **beside})
    assert json.loads(data, parse_constant=pytest.fail)["list"] == [None, 1.5]


def test_nan_in_a_model_becomes_null() -> None:
    assert decode_json(encode_json(Thing(name="x", score=math.nan))) == {"name": "x", "score": None}


@pytest.mark.parametrize("text", ["NaN", "[Infinity, -Infinity]", '{"a": NaN}'])
def test_nan_and_infinities_that_other_writers_emit_are_read(text: str) -> None:
    assert repr(decode_json(text)) == repr(json.loads(text))


def test_keys_that_are_not_text_become_text() -> None:
    assert decode_json(encode_json({1: "a", None: "b", 2.5: "c"})) == {"1": "a", "null": "b", "2.5": "c"}


def test_half_a_surrogate_pair_survives() -> None:
    value = {"text": "cut \ud83d"}
    assert decode_json(encode_json(value)) == value
    assert decode_json(encode_json(Thing(name="x", text="cut \ud83d"))) == {"name": "x", **value}


def test_text_is_written_unchanged() -> None:
    assert encode_json({"text": "größer 你好 🎈"}) == '{"text":"größer 你好 🎈"}'.encode()


def test_model_serializes_set_fields_and_undeclared_ones() -> None:
    assert decode_json(encode_json(Thing.model_validate({"name": "x", "more": [1]}))) == {
        "name": "x",
        "more": [1],
    }
    assert decode_json(encode_json(Thing(name="x", size=None))) == {"name": "x", "size": None}


def test_models_inside_plain_data_are_serialized_with_set_fields() -> None:
    assert decode_json(encode_json({"things": [Thing(name="x")], "big": 2**70})) == {
        "things": [{"name": "x"}],
        "big": 2**70,
    }


@pytest.mark.parametrize("beside", [{}, {"big": 2**70}])
def test_sets_tuples_and_dates_can_be_sent(beside: dict[str, Any]) -> None:
    value = {"set": {1}, "tuple": (1, 2), "date": datetime(2024, 5, 6, tzinfo=UTC), **beside}
    assert decode_json(encode_json(value)) == {
        "set": [1],
        "tuple": [1, 2],
        "date": "2024-05-06T00:00:00+00:00",
        **beside,
    }


def test_type_that_is_not_data_is_refused_with_its_name() -> None:
    with pytest.raises(TypeError, match="object is not JSON data"):
        encode_json({"it": object()})


@pytest.mark.parametrize("data", [b"", b" ", b"{", b"[1,]", b"{'a': 1}", b"01", b"\xff", b"1 2"])
def test_text_that_is_not_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_json(data)


def test_deep_nesting_is_read() -> None:
    value = decode_json(b"[" * 500 + b"]" * 500)
    for _ in range(499):
        (value,) = value
    assert value == []
