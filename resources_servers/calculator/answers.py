"""Extracts the last number of an answer and compares it with the expected one."""

import re

from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseOutputMessage, NeMoGymResponseOutputText

RELATIVE_TOLERANCE = 1e-6
MAX_TOLERANCE = 1e-3
"""Upper bound of the tolerance: a neighbouring whole number is wrong, however large the expected answer."""

_CANDIDATE = re.compile(
    r"""
    (?P<sign>(?<![A-Za-z0-9_)\]%])[-+\u2212])?  # a minus after a number or a word is an operator or a hyphen
    [$\u20ac\u00a3\u00a5]?
    (?<![A-Za-z0-9_])(?<![0-9][-/:.,\u2212])
    (?P<digits>(?:(?<![\w.])\.)?[0-9][0-9.,]*+)
    (?P<exponent>[eE][-+]?[0-9]++)?+
    (?![-/:\u2212][0-9])                # parts of dates, times and fractions do not count
    """,
    re.VERBOSE,
)
_WELL_FORMED = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")


def last_number(text: str) -> str | None:
    """The last well-formed number of a text, without separators: "It is $1,081.50." gives "1081.50"."""
    number = None
    for candidate in _CANDIDATE.finditer(text):
        digits = candidate["digits"].rstrip(".,") if not candidate["exponent"] else candidate["digits"]
        if _WELL_FORMED.fullmatch(digits):
            sign = "-" if candidate["sign"] in ("-", "\u2212") else ""
            number = sign + digits.replace(",", "") + (candidate["exponent"] or "")
    return number


def is_same_number(found: str | None, expected: str) -> bool:
    """Whether the number found equals the expected one, up to rounding."""
    target = last_number(expected)
    if target is None:
        raise ValueError(f"expected_answer {expected!r} is not a number")
    if found is None:
        return False
    tolerance = min(RELATIVE_TOLERANCE * abs(float(target)), MAX_TOLERANCE)
    return abs(float(found) - float(target)) <= tolerance


def last_message_text(response: NeMoGymResponse) -> str:
    """The text of the model's last message."""
    for item in reversed(response.output):
        if isinstance(item, NeMoGymResponseOutputMessage):
            return "".join(part.text for part in item.content if isinstance(part, NeMoGymResponseOutputText))
    return ""
