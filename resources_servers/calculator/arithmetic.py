"""Evaluates arithmetic expressions exactly: Python parses the text but never executes it.

Invariant: every text gives a value or an error within milliseconds. The length limit of 200 characters bounds
the nesting; exponents and intermediate values have their own limits.
"""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_LENGTH = 200
MAX_EXPONENT = 10_000
MAX_MAGNITUDE = 10**100
MAX_EXACT_BITS = 16_384
"""Fractions with a larger denominator are rounded to a float."""
DECIMALS = 10

_PLAIN_SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "^": "**"})
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
# A percent sign between two operands is Python's modulo.
_PERCENT = re.compile(r"([0-9.]+(?:[eE][-+]?[0-9]+)?) ?% ?(?:(of)\b|(?=[-+*/%)]|$))")
_ALLOWED = re.compile(r"[0-9eE.+\-*/%() ]+")

_OPERATORS: dict[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class ExpressionError(ValueError):
    """Why an expression has no value; the message is for the model that wrote it."""


def evaluate(expression: str) -> Fraction:
    """The value of an arithmetic expression; raises ExpressionError if it has none."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"the expression is longer than {MAX_LENGTH} characters")
    source = _python_source(expression)
    if not source:
        raise ExpressionError("the expression is empty")
    if not _ALLOWED.fullmatch(source):
        raise ExpressionError("only numbers, parentheses and + - * / // % ** are allowed")
    try:
        return _value(ast.parse(source, mode="eval").body, source)
    except SyntaxError:
        raise ExpressionError("this is not a complete arithmetic expression") from None
    except ZeroDivisionError:
        raise ExpressionError("division by zero") from None


def format_number(value: Fraction) -> str:
    """A value as people write it: a whole number without `.0`, others with at most ten decimals."""
    if value and abs(value) < Fraction(1, 1000):
        return f"{float(value):.10g}"  # ten decimals would keep too few digits
    scale = 10**DECIMALS
    whole, decimals = divmod(round(abs(value) * scale), scale)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{decimals:0{DECIMALS}d}".rstrip("0").rstrip(".")


def _python_source(expression: str) -> str:
    text = " ".join(expression.translate(_PLAIN_SIGNS).split())
    text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    return _PERCENT.sub(lambda percent: f"({percent[1]}/100)" + ("*" if percent[2] else ""), text)


def _value(node: ast.AST, source: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            # From the source text: 0.1 is exactly a tenth, not the nearest float.
            literal = source[node.col_offset : node.end_col_offset]
            return Fraction(literal) if 0 < node.value <= MAX_MAGNITUDE else _bounded(node.value)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub()):
            return _OPERATORS[type(node.op)](_value(node.operand, source))
        case ast.BinOp(op=ast.Pow()):
            return _bounded(_power(_value(node.left, source), _value(node.right, source)))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _value(node.left, source), _value(node.right, source)
            return _bounded(_OPERATORS[type(node.op)](left, right))
    raise ExpressionError("only numbers, parentheses and + - * / // % ** are allowed")


def _power(base: Fraction, exponent: Fraction) -> Fraction | float:
    if abs(exponent) > MAX_EXPONENT:
        raise ExpressionError(f"the exponent is larger than {MAX_EXPONENT}")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator == 1 and bits * abs(exponent) <= MAX_EXACT_BITS:
        return Fraction(base**exponent)
    if base < 0 and exponent.denominator != 1:
        raise ExpressionError("a negative number to a fractional power is not a real number")
    try:
        return float(base) ** float(exponent)
    except OverflowError:
        raise ExpressionError("the result is too large") from None


def _bounded(value: Fraction | float) -> Fraction:
    if abs(value) > MAX_MAGNITUDE:
        raise ExpressionError("the result is too large")
    exact = Fraction(value)
    return exact if exact.denominator.bit_length() <= MAX_EXACT_BITS else Fraction(float(exact))
