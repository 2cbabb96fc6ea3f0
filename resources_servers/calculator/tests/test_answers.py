import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources_servers.calculator.answers import is_same_number, last_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("15% of 240 is 36", "36"),
        ("The answer is 1,081", "1081"),
        ("The answer is 1,081.", "1081"),
        ("It is 1081.0!", "1081.0"),
        ("You pay $1,081.50.", "1081.50"),
        ("-3", "-3"),
        ("It is \u22123.", "-3"),
        ("You owe -$3.50", "-3.50"),
        ("That is 36%", "36"),
        ("47*23=1081", "1081"),
        ("10 - 3", "3"),
        ("**36**", "36"),
        (r"\boxed{-36}", "-36"),
        ("So...36", "36"),
        ("\u7b54\u6848\u662f-36\u3002", "-36"),
        ("about .5", ".5"),
        ("1.25e-05.", "1.25e-05"),
        ("12, 36, ", "36"),
        ("1,234,567.89", "1234567.89"),
        ("36kg", "36"),
    ],
)
def test_last_number_is_found_in_common_notations(text: str, number: str) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "1,08",
        "1,2345",
        "0,081",
        "1,234,56",
        "1.2.3",
        "2024-05-01",
        "5/1/2024",
        "10:30",
        "3/4",
        "x36",
    ],
)
def test_text_that_only_looks_like_a_number_is_ignored(text: str) -> None:
    assert last_number(text) is None
    assert last_number(f"It is 7, not {text}") == "7"


@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from(
        ["The answer is {}.", "{}", "= {}", "so **{}**!", "It costs ${} now", "({})", "{}, I think"]
    ),
    st.sampled_from(["{}", "{:,}"]),
)
def test_whole_number_in_a_sentence_is_found(value: int, sentence: str, style: str) -> None:
    assert last_number("First 12, then " + sentence.format(style.format(value))) == str(value)


@given(st.decimals(-(10**6), 10**6, places=2).filter(bool))
def test_decimal_with_separators_is_found(value: object) -> None:
    found = last_number(f"The total is {value:,}.")
    assert is_same_number(found, str(value))


@given(st.text(alphabet="0123456789.,-+/:$%eE \u2212x", max_size=40))
def test_found_text_is_always_a_number(text: str) -> None:
    number = last_number(text)
    assert number is None or float(number) is not None


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("36", "36", True),
        ("36.0", "36", True),
        ("1081", "1,081", True),
        ("0.3333333", "0.33333333333", True),
        ("0.333", "0.33333333333", False),
        ("1000000001", "1000000000", False),
        ("0", "0", True),
        ("0.0000001", "0", False),
        ("-36", "36", False),
        ("1e999", "36", False),
        (None, "36", False),
    ],
)
def test_numbers_are_compared_up_to_rounding(found: str | None, expected: str, same: bool) -> None:
    assert is_same_number(found, expected) is same


def test_expected_answer_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected_answer 'many' is not a number"):
        is_same_number("36", "many")


def test_a_long_text_of_digits_is_read_in_linear_time() -> None:
    assert last_number("1," * 100_000 + " 36") == "36"
    assert last_number("1" * 200_000 + "-1 36") == "36"
