import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources_servers.calculator.arithmetic import (
    MAX_LENGTH,
    MAX_MAGNITUDE,
    ExpressionError,
    evaluate,
    format_number,
)


def calculate(expression: str) -> str:
    return format_number(evaluate(expression))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("240 * 0.15", "36"),
        ("47 \u00d7 23", "1081"),
        ("7 \u00f7 2", "3.5"),
        ("\u22123 - 4", "-7"),
        ("2^10", "1024"),
        ("0.1 + 0.2", "0.3"),
        ("1/3*3", "1"),
        ("10/3", "3.3333333333"),
        ("1,081 + 1,000,000", "1001081"),
        ("1,234.5 * 2", "2469"),
        ("-7 // 2", "-4"),
        ("-2 ** 2", "-4"),
        ("2 ** 0.5", "1.4142135624"),
        ("1.0041667 ** 360", "4.4677977048"),
        ("1e3 + 1", "1001"),
        ("-0.0", "0"),
        ("(1 +\n 2) * 3", "9"),
        ("1 / 80000", "1.25e-05"),
    ],
)
def test_results_are_exact_and_written_plainly(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("15% of 240", "36"),
        ("15 % of 240", "36"),
        ("15% * 240", "36"),
        ("240 / 15%", "1600"),
        ("200 + 5%", "200.05"),
        ("(12.5%)", "0.125"),
        ("10% - 3", "-2.9"),
        ("10 % 3", "1"),
        ("10%3", "1"),
        ("10 % (-3)", "-2"),
        ("10 % (2 + 2)", "2"),
    ],
)
def test_percent_sign_is_modulo_only_between_two_operands(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9**9**9", "the exponent is larger"),
        ("10**99 * 100", "the result is too large"),
        ("1e999999999", "the result is too large"),
        ("123456789 ** 9999", "the result is too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("", "empty"),
        ("  ", "empty"),
        ("1 +", "not a complete"),
        ("(" * 100, "not a complete"),
        ("1 2", "not a complete"),
        ("1.2.3", "not a complete"),
        ("1,08 + 2", "only numbers"),
        ("3(4)", "only numbers"),
        ("__import__('os')", "only numbers"),
        ("1 if 2 else 3", "only numbers"),
        ("e", "only numbers"),
        ("1 + \x00", "only numbers"),
        ("1" * (MAX_LENGTH + 1), "longer than 200"),
    ],
)
def test_expression_without_a_value_is_an_error_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        evaluate(expression)


def test_deep_nesting_is_computed() -> None:
    assert evaluate("-" * (MAX_LENGTH - 1) + "1") == -1
    assert evaluate("(" * 99 + "1" + ")" * 99) == 1
    assert evaluate("1+" * 99 + "1") == 100


def test_huge_denominators_are_rounded() -> None:
    assert calculate("1.0001 ** 10000") == "2.7181459268"
    assert calculate("*".join(["1.0041667**360"] * 12 + ["0"])) == "0"
    assert calculate("1e-99999999") == "0"


def expressions() -> st.SearchStrategy[str]:
    numbers = st.integers(0, 10_000).map(str) | st.decimals(0, 1000, places=2).map(str)
    operators = st.sampled_from(["+", "-", "*", "/", "//", "%"])
    return st.recursive(
        numbers,
        lambda inner: (
            st.tuples(inner, operators, inner).map(lambda parts: "({} {} {})".format(*parts))
            | inner.map(lambda text: f"(-{text})")
        ),
        max_leaves=10,
    ).filter(lambda text: len(text) <= MAX_LENGTH)


def python_value(expression: str) -> Fraction:
    """Python's own evaluation, with every number as a Fraction."""
    numbers = re.sub(r"[0-9.]+", lambda number: f"('{number[0]}')", expression)
    return Fraction(eval(numbers.replace("(", "Fraction("), {"Fraction": Fraction}))


@given(expressions())
def test_values_are_those_of_python_on_fractions(expression: str) -> None:
    try:
        expected = python_value(expression)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="division by zero"):
            evaluate(expression)
        return
    if abs(expected) <= MAX_MAGNITUDE:
        assert evaluate(expression) == expected


@given(st.text("0123456789.,+-*/%^()eE of\u00d7", max_size=60) | st.text(max_size=60))
def test_any_text_gives_a_number_or_a_reason(expression: str) -> None:
    try:
        result = calculate(expression)
    except ExpressionError as error:
        assert str(error)
    else:
        assert float(result) is not None


@given(st.integers(-(10**20), 10**20))
def test_whole_values_have_no_decimals(value: int) -> None:
    assert format_number(Fraction(value)) == str(value)


@given(st.fractions(-1000, 1000))
def test_formatted_values_are_correct_to_ten_digits(value: Fraction) -> None:
    written = Fraction(format_number(value))
    assert abs(written - value) <= max(Fraction(1, 10**10), abs(value) / 10**9)
