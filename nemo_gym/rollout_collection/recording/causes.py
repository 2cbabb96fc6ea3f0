"""Causes of failures in short form, and groups of failures that have the same cause.

The message of a failure holds those of every server that it passed through, as JSON in JSON. Its cause is the
innermost: which route of which server responded with what status, and the first thing that it said.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_gym.failures import AnyKind
from nemo_gym.rollout_collection.outcome import Failure
from nemo_gym.terminal import one_line
from nemo_gym.text_fit import shortened

_MOST_CAUSES = 1000
"""Different causes that are counted separately. Memory does not grow beyond them."""
_LONGEST = 300
_LONGEST_PLACE = 40
_SCANNED = 4000
_CALL = re.compile(r"[A-Z]{3,7} (\S+): (\d{3})(?: \((.+?) responded with (\d{3})\))?: ")
_RAISED = re.compile(r"(\w[\w.]*)\((.*?)\)?\Z", re.DOTALL)
"""The `repr` of an exception."""
_SELF_EXPLANATORY = frozenset(
    {"AgentFailure", "InvalidRollout", "ServerUnreachableError", "TimeoutError", "WorkerDied"}
)
"""Types of errors whose messages say everything."""
_DECLARED = re.compile(r"\S+ declared this rollout failed \(\S+?\): ")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TAG = re.compile(r"<[^<>]*>")
_ONE_DETAIL = re.compile(r'"loc":\s*\[([^\]]*)\],\s*"msg":\s*"((?:[^"\\]|\\.)*)"')
_MESSAGE = re.compile(r'"message":\s*"((?:[^"\\]|\\.)*)"')
_VARIABLE = re.compile(
    r"""(?<!\w)'[^']*'(?!\w)|"[^"]*"|`[^`]*`"""  # quoted texts
    r"|\b(?=[\w-]*\d)[\w-]{8,}\b|\d+(?:[.,]\d+)*"  # identifiers and numbers
)
"""What differs between failures with the same cause."""


class Cause(NamedTuple):
    """Why a rollout failed."""

    kind: AnyKind
    place: str
    """`calculator/verify 422` if a server responded with an error; else the type of the error, or nothing."""
    text: str

    @property
    def group(self) -> tuple[str, str, str]:
        """The same for failures that differ only in numbers, identifiers and quoted values."""
        text = _VARIABLE.sub("#", self.text)
        return self.kind, self.place, text if text.strip("# ") else self.text

    def __str__(self) -> str:
        parts = (self.kind, shortened(self.place, _LONGEST_PLACE), self.text)
        return one_line(": ".join(part for part in parts if part))


def cause_of(kind: AnyKind, error_type: str, message: str) -> Cause:
    """The cause in a recorded failure; its message may be cut off."""
    place, text = _place_of(error_type), message[:_SCANNED]
    while call := _CALL.match(text):
        place, text = _place(call), text[call.end() :]
        if not text.startswith('"'):
            return Cause(kind, place, _brief(_said(text)))
        text = _unquoted(text)
        if raised := _RAISED.match(text):
            name, text = raised[1].rpartition(".")[2], _unquoted(raised[2])
            if not _CALL.match(text):
                place = place if _place_of(name) else ""
                text = f"{name}: {text}" if place else text
    return Cause(kind, place, _brief(_DECLARED.sub("", text, count=1)))


def _place_of(error_type: str) -> str:
    return "" if error_type in _SELF_EXPLANATORY else error_type


def _place(call: re.Match[str]) -> str:
    """`calculator/verify 422`; only the server and its status if it was called by the one that was called."""
    url, status, server, first_status = call.groups()
    if first_status not in (None, status):
        return f"{server} {first_status}"
    _, scheme, rest = url.partition("://")
    host, _, path = (rest if scheme else url).partition("/")
    return f"{server or host}/{path} {status}"


def _unquoted(text: str) -> str:
    """A text out of its quotes, also if its end is cut off."""
    if text[:1] not in ("'", '"'):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        body = text[1:-1] if text[-1] == text[0] else text[1:]
        return _ESCAPED.sub(lambda found: " " if found[1] in "nrt" else found[1], body)
    return value if isinstance(value, str) else text


def _said(body: str) -> str:
    """What an error response says, without the request that it quotes."""
    try:
        found = "; ".join(dict.fromkeys(_messages(json.loads(body))))
    except (ValueError, RecursionError):  # not JSON, or cut off
        details = [_detail(loc.replace('"', "").split(","), msg) for loc, msg in _ONE_DETAIL.findall(body)]
        found = "; ".join(dict.fromkeys(details or _MESSAGE.findall(body)[:1]))
    return found or _TAG.sub(" ", body)


def _messages(value: Any) -> Iterator[str]:
    """The messages in an error: of FastAPI, of OpenAI's API, or plain text."""
    match value:
        case str():
            yield value
        case {"detail": list(errors)} if errors and all(isinstance(one, dict) for one in errors):
            for one in errors:
                location = one.get("loc")
                yield _detail(location if isinstance(location, list) else [], str(one.get("msg")))
        case {"detail": inner} | {"error": inner} | {"message": inner} if inner:
            yield from _messages(inner)


def _detail(location: list[Any], message: str) -> str:
    """`expected_answer: Field required`; the location begins with the part of the request."""
    name = ".".join(str(part).strip() for part in location[1:])
    return f"{name}: {message}" if name else message


def _brief(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


@dataclass
class Causes:
    """Counts failures by cause."""

    _counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _first: dict[tuple[str, str, str], Cause] = field(default_factory=dict)
    """The cause of the first failure of each group."""
    _uncounted: int = 0

    def take(self, failure: Failure) -> None:
        cause = cause_of(failure.kind, failure.error_type, failure.message)
        group = cause.group
        if group in self._counts or len(self._counts) < _MOST_CAUSES:
            self._counts[group] = self._counts.get(group, 0) + 1
            self._first.setdefault(group, cause)
        else:
            self._uncounted += 1

    def most_common(self) -> list[tuple[Cause, int]]:
        order = sorted(self._counts, key=lambda group: -self._counts[group])
        return [(self._first[group], self._counts[group]) for group in order]

    def lines(self, most: int = 5) -> list[str]:
        """The most frequent causes, each with its count, and how many others there are."""
        found = self.most_common()
        lines = [f"{count} x {cause}" for cause, count in found[:most]]
        others = len(found) - most
        if others > 0:
            more = "more than " if self._uncounted else ""
            lines.append(f"and {more}{others} other cause{'s' if others > 1 else ''}")
        return lines
